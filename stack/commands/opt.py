"""`stackc opt`: run passes over IR text."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError, VerifyError
from stack.explore.diff import without_lines
from stack.explore.saved_run import is_run, load_run, machine_of, parse_file_text
from stack.explore.table import table
from stack.explore.target import IRText, resolve
from stack.ir import files
from stack.ir.func import Func
from stack.ir.verifier import verify
from stack.rewrite.pipeline import Pipeline, Record
from stack.schedule import named_schedules
from stack.target import Cpu, Target, load
from stack.wings import part

OPT = """
    Run passes over a function in IR text and print the result. A summary of each pass goes to
    stderr. FILE may be - for stdin, or RUN:STAGE of a saved run.

    With --against optimum, nothing is printed of the function. All legal fusings of a program are
    searched, and the fusion pass of a backend's pipeline, or yours in its place, is compared with
    the best: how many fusings there are, how their predicted costs are distributed, and measured
    times of the best ones in interleaved rounds.

    examples:
      stackc opt block.stack --pass-pipeline='canonicalize,fuse{max_inputs=8}'
      stackc opt r1:imported --pass-pipeline=canonicalize --check
      stackc opt r1:imported --pass-pipeline=canonicalize --fuel 3 --print-changed
      stackc opt r1:fused --schedule 'y: m=128 n=64 k=32 stages=3' --pass-pipeline=schedule,blocks
      stackc show r1 imported | stackc opt - --pass-pipeline=fold
      stackc opt demos/transformer.py:llama_block --against optimum --plot landscape
      stackc opt r1 --against optimum --pass-pipeline=default,-fuse,+mine.py:Mine@fused
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc opt`."""
    parser = common.command(subparsers, "opt", run_opt, "run passes over IR text", OPT)
    parser.add_argument("file", metavar="FILE", help="a file of IR text, RUN:STAGE, or - for stdin")
    parser.add_argument(
        "--pass-pipeline",
        metavar="PIPELINE",
        help="passes to run, see `stackc passes` (default with --schedule: schedule, for --target)",
    )
    common.add_schedule(parser)
    parser.add_argument(
        "--target",
        metavar="NAME|FILE",
        help="the machine to lower for, see `stackc targets` (default: that of RUN, else sm_90 for"
        " passes of GPUs, avx512 for passes of CPUs)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, not to stdout")
    parser.add_argument(
        "--check",
        action="store_true",
        help="interpret before and after every pass on inputs of all kinds (large, tiny, zero rows,"
        " inf, nan, ...) and compare",
    )
    parser.add_argument(
        "--fuel", type=int, metavar="N", help="stop rewriting after N rewrites (for bisection)"
    )
    parser.add_argument(
        "--print-changed",
        action="store_true",
        help="print the function after every pass that changed it, to stderr",
    )
    parser.add_argument("--no-lines", action="store_true", help="print no source lines")
    parser.add_argument(
        "--stats", action="store_true", help="how often each rule applied or nearly applied"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also print near misses and refused fusions"
    )
    _add_against(parser)
    common.add_wide(parser)


def _add_against(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `--against`."""
    group = parser.add_argument_group("judge a fusion pass")
    group.add_argument(
        "--against",
        choices=("optimum",),
        help="search all legal fusings of FILE, which may also be file.py:name; compare the fusion"
        " pass of the pipeline with the best, predicted and measured",
    )
    group.add_argument(
        "-i", "--input", action="append", default=[], metavar="SPEC", help="as for `stackc dump`"
    )
    group.add_argument("--frontend", metavar="NAME", help="as for `stackc dump`")
    group.add_argument("--backend", metavar="NAME", help="whose pipeline it is (default: mlir)")
    group.add_argument(
        "--best",
        type=int,
        default=3,
        metavar="N",
        help="how many of the best fusings to show and measure (default: %(default)s)",
    )
    group.add_argument(
        "--rounds",
        type=int,
        default=7,
        metavar="N",
        help="rounds of timing (default: %(default)s); 0 measures nothing",
    )
    group.add_argument(
        "--plot", metavar="FILE", help="plot the landscape; without suffix, as svg and png"
    )


def read(spec: str) -> Func:
    """Reads a function from a file, from RUN:STAGE, or from stdin.

    Raises ParseError and VerifyError with the position in the file.
    """
    if spec == "-":
        func = parse_file_text(sys.stdin.read(), files.load_constants(Path()), Path("stdin"))
    else:
        target = resolve(spec)
        if not isinstance(target, IRText):
            raise not_ir(spec)
        func = target.func
    try:
        verify(func)
    except VerifyError as error:
        place = place_of(error.node, spec)
        if place:
            error.add_note(f"at {place}")
        raise
    return func


def not_ir(spec: str, inputs: Sequence[str] = ()) -> UsageError:
    """Returns the error for a program or a run where a command takes IR text."""
    if ".py:" not in spec:
        return UsageError(f"{spec} is not a file of IR text; for a stage of a run write RUN:STAGE")
    given = "".join(f" -i '{text}'" for text in inputs)
    return UsageError(
        f"{spec} is a program, not IR text: dump it first, with `stackc dump {spec}{given} -o r1`,"
        " then name a stage, as r1:imported"
    )


def _machine_of(spec: str) -> Target | None:
    """Returns the target of the run in RUN:STAGE; None for other files."""
    folder, colon, _ = spec.rpartition(":")
    return machine_of(load_run(folder)) if colon and is_run(Path(folder)) else None


def place_of(node: str, file: str) -> str:
    """Returns where a file of IR text defines a node, as `file:line:column`.

    `node` is the node's text, which begins with its name. Returns "" if the file does not define
    it.
    """
    name = node.partition(" =")[0].strip()
    if not name.startswith("%") or not Path(file).is_file():
        return ""
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip().startswith(f"{name} ="):
            return f"{file}:{number}:{len(line) - len(line.lstrip()) + 1}"
    return ""


def run_opt(args: argparse.Namespace) -> int:
    """Runs a pipeline over IR text, or judges its fusion pass."""
    if args.against:
        return part("bench", "judge-fusings")(args)
    schedules = named_schedules(args.schedule)
    target = load(args.target) if args.target else _machine_of(args.file)
    loops = "{loops=cpu}" if isinstance(target, Cpu) else ""
    pipeline = args.pass_pipeline or (f"schedule{loops}" if schedules else "")
    if not pipeline:
        raise UsageError("give the passes to run as --pass-pipeline, see `stackc passes`")
    func = read(args.file)

    def on_pass(record: Record) -> None:
        error = "" if record.error is None else f"; largest relative error {record.error:.2g}"
        common.progress(f"{record}{error}")
        for note in record.notes:
            common.progress(f"  {note}")
        if args.verbose:
            for miss in record.misses:
                common.progress(f"  {miss.rule} did not apply: {miss.reason}: {miss.node}")
            for refused in record.refused:
                common.progress(
                    f"  did not fuse {refused.producer} with {refused.consumer}: {refused.reason}"
                )
        if args.print_changed and record.changed:
            common.progress(f"// ---- after {record.name}\n{shown(record.after, args.no_lines)}")

    result = Pipeline(pipeline).run(
        func,
        check=args.check,
        fuel=args.fuel,
        on_pass=on_pass,
        verbose=args.verbose or args.stats,
        target=target,
        schedules=schedules,
    )
    if args.stats:
        common.progress(statistics(result.records))
    if args.output:
        files.save(result.func, args.output)
    else:
        print(shown(result.func, args.no_lines))
    return 0


def statistics(records: Sequence[Record]) -> str:
    """Formats a row per rule of each pass: how often it applied, nearly applied, and why not.

    Fusions that a pass refused have a row per reason.
    """
    rows: list[list[object]] = []
    for record in records:
        near = Counter(miss.rule for miss in record.misses)
        for rule in dict.fromkeys((*record.by_rule, *near)):
            whys = dict.fromkeys(miss.reason for miss in record.misses if miss.rule == rule)
            applied = record.by_rule.get(rule, 0)
            rows.append([record.name, rule, applied, near[rule], "; ".join(whys)])
        kept = Counter(refused.reason for refused in record.refused)
        rows.extend([record.name, "not fused", 0, n, why] for why, n in kept.most_common())
    return table(["pass", "rule", "applied", "nearly", "why not"], rows, drop=["why not"])


def shown(func: Func, no_lines: bool) -> str:
    """Returns a function's text, with or without source lines."""
    return (without_lines(str(func)) if no_lines else str(func)).rstrip()
