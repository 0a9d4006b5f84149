"""`stackc opt` and `stackc run`: passes over IR text, and IR text on random inputs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stack.commands import common
from stack.errors import UsageError
from stack.explore.diff import without_lines
from stack.explore.lowering import Settings, compile_target
from stack.explore.saved import parse_file_text
from stack.explore.table import number, table
from stack.explore.target import IRText, resolve
from stack.ir import files
from stack.ir.node import Func
from stack.ir.storage import decode, encode
from stack.ir.verifier import verify
from stack.rewrite.check import TOLERANCE, as_list, difference, random_inputs
from stack.rewrite.pipeline import Pipeline, Record
from stack.schedule import named_schedules
from stack.target import load

OPT = """
    Run passes over a function in IR text and print what comes out; a summary of each pass goes
    to stderr. FILE may be -, and may be RUN:STAGE of a saved run.

    examples:
      stackc opt block.stack --pass-pipeline='canonicalize,fuse{max_inputs=8}'
      stackc opt r1:imported --pass-pipeline=canonicalize --check
      stackc opt r1:imported --pass-pipeline=canonicalize --fuel 3 --print-changed
      stackc opt r1:fused --schedule 'y: m=128 n=64 k=32 stages=3' --pass-pipeline=schedule,blocks
      stackc show r1 imported | stackc opt - --pass-pipeline=fold
"""
RUN = """
    Run a function in IR text on random inputs: in the reference interpreter, and with --backend
    through a backend too, whose results are then compared (exit code 1 where they differ).
    Indices that come from data are checked as the interpreter runs; native code does not check
    them, and never sees a function that leaves its arrays, except with --unsafe.

    examples:
      stackc run block.stack
      stackc run r1:fused --backend mlir
      stackc run r1:imported --seed 7 --save out.npz
"""


def add(subparsers: common.Subparsers) -> None:
    """The subcommands' arguments."""
    parser = common.command(subparsers, "opt", run_opt, "run passes over IR text", OPT)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--pass-pipeline",
        metavar="PIPELINE",
        help="names: see `stackc passes` (with --schedule, by default: schedule)",
    )
    common.add_schedule(parser)
    parser.add_argument(
        "--target",
        metavar="NAME|FILE",
        help="the machine that passes lower for, see `stackc targets` (default: sm_90 or avx512,"
        " as a pass is for GPUs or CPUs)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to stdout")
    parser.add_argument(
        "--check",
        action="store_true",
        help="interpret before and after every pass on random inputs and compare",
    )
    parser.add_argument(
        "--fuel", type=int, metavar="N", help="stop rewriting after N rewrites (for bisection)"
    )
    parser.add_argument(
        "--print-changed", action="store_true", help="after every pass that changed it, to stderr"
    )
    parser.add_argument("--no-lines", action="store_true", help="leave source lines out")
    parser.add_argument("--verbose", action="store_true", help="near matches and refusals too")

    parser = common.command(subparsers, "run", run_run, "run IR text on random inputs", RUN)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--backend", metavar="NAME", help="also run there, and compare")
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="run it there alone: nobody looks whether indices stay inside of arrays",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random inputs")
    parser.add_argument("--save", metavar="NPZ", help="write inputs and results")
    common.add_json(parser, "stack.results/1")


def read(spec: str) -> Func:
    """A function from a file, from RUN:STAGE, or from stdin."""
    if spec == "-":
        return parse_file_text(sys.stdin.read(), files.load_constants(Path()), Path("stdin"))
    target = resolve(spec)
    if not isinstance(target, IRText):
        raise UsageError(f"{spec} is no file of IR text; a stage of a run is RUN:STAGE")
    return target.func


def run_opt(args: argparse.Namespace) -> int:
    """Passes over text."""
    schedules = named_schedules(args.schedule)
    pipeline = args.pass_pipeline or ("schedule" if schedules else "")
    if not pipeline:
        raise UsageError("--pass-pipeline names the passes to run, see `stackc passes`")
    func = read(args.file)
    verify(func)

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
                    f"  kept {refused.producer} apart from {refused.consumer}: {refused.reason}"
                )
        if args.print_changed and record.changed:
            common.progress(f"// ---- after {record.name}\n{shown(record.after, args.no_lines)}")

    result = Pipeline(pipeline).run(
        func,
        check=args.check,
        fuel=args.fuel,
        on_pass=on_pass,
        verbose=args.verbose,
        target=load(args.target) if args.target else None,
        schedules=schedules,
    )
    if args.output:
        files.save(result.func, args.output)
    else:
        print(shown(result.func, args.no_lines))
    return 0


def shown(func: Func, no_lines: bool) -> str:
    """A function's text, with or without source lines."""
    return (without_lines(str(func)) if no_lines else str(func)).rstrip()


def run_run(args: argparse.Namespace) -> int:
    """Interpret, and compare with a backend."""
    func = read(args.file)
    verify(func)
    inputs = random_inputs(func, args.seed)
    if args.unsafe and args.backend:
        run_backend(func, inputs, args.backend)
        return 0
    try:
        expected = as_list(func.interpret(*inputs))
    except IndexError as error:
        raise UsageError(
            f"on these inputs {error}; --unsafe gives it to a backend anyway"
        ) from None
    found = run_backend(func, inputs, args.backend) if args.backend else None
    rows: list[dict[str, Any]] = []
    agrees = True
    for i, (result, want) in enumerate(zip(func.results, expected, strict=True)):
        row: dict[str, Any] = {"result": i, "type": str(result.type), **statistics(want)}
        if found is not None:
            error = difference(want, found[i], result.dtype)
            row["error"] = error
            agrees &= error <= TOLERANCE.get(result.dtype.name, 0.0)
        rows.append(row)
    if args.save:
        held: dict[str, Any] = {
            f"input_{p.attrs['name']}": a for p, a in zip(func.params, inputs, strict=True)
        }
        held |= {f"result_{i}": a for i, a in enumerate(expected)}
        np.savez(args.save, **held)
    if args.json:
        common.print_json({"schema": "stack.results/1", "function": func.name, "results": rows})
    else:
        print(table(list(rows[0]) if rows else ["result"], [list(r.values()) for r in rows]))
    if not agrees:
        common.progress(f"{args.backend} and the interpreter disagree")
    return 0 if agrees else 1


def statistics(array: Any) -> dict[str, Any]:
    """A few numbers by which results are recognised."""
    held = np.asarray(array)
    if held.size == 0:
        return {"min": "-", "mean": "-", "max": "-", "nan": 0}
    wide = np.abs(held) if held.dtype.kind == "c" else held.astype(np.float64)
    return {
        "min": number(float(np.nanmin(wide))),
        "mean": number(float(np.nanmean(wide))),
        "max": number(float(np.nanmax(wide))),
        "nan": int(np.isnan(wide).sum()),
    }


def run_backend(func: Func, inputs: Sequence[np.ndarray], backend: str) -> list[np.ndarray]:
    """Results of a backend as the interpreter holds them."""
    graph = compile_target(IRText(func.name, func), Settings(backend))
    ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
    results = graph.executable_for(ready).run(ready)
    return [decode(r, n.dtype) for r, n in zip(results, func.results, strict=True)]
