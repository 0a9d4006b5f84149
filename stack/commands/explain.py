"""`stackc where` and `explain`: trace a source line through the stages, with the reasons."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import stack.explore.tiles as tiles
from stack.commands import common
from stack.errors import UsageError
from stack.explore.assembly import assembly, beside_source
from stack.explore.diff import without_lines
from stack.explore.kernel_rows import kernel_of, kernel_rows
from stack.explore.kernel_sharing import explain_pairs, told
from stack.explore.node_outcomes import fate_table, fates
from stack.explore.provenance import NodeLocation, explain, where
from stack.explore.retrace import retrace
from stack.explore.saved_run import SavedRun, load_run
from stack.explore.steps import explain_step, is_step
from stack.explore.table import listing, table
from stack.explore.target import ExampleCall, resolve
from stack.run.trace import find_frontend
from stack.wings import call_if_here, wing

WHERE = """
    Show where a source line went, or where a node or a kernel came from.

    WHAT is a source line (block.py:42), a file, a module path (attn.wq), a node or a kernel. Any
    other word selects all source lines that contain it. A stage that shows the same as the stage
    before it is left out. Without WHAT: the outcome of every op.

    examples:
      stackc where r1                        the outcome of each op: a kernel, a fold, ...
      stackc where r1 transformer.py:42
      stackc where r1 softmax
      stackc where r1 kernel_3
"""
EXPLAIN = """
    Explain what each pass did to a line: what it rewrote there, which groups it formed, which
    fusions it refused and which rules nearly applied. With two, A and B: why one kernel computes
    both, or why not. The answers are the decisions that the run recorded, so neither the
    framework nor the model, its weights and plug-ins are needed.

    examples:
      stackc explain r1 transformer.py:42
      stackc explain r1 softmax --stage fused
      stackc explain r1 y out                why they are (or are not) in one kernel
      stackc explain r1 y.step2              step 2 of a kernel: what it did, and why
      stackc explain r1 --kernel dot_add     what bounds its time, registers, assembly by line
      stackc explain r1 --tile dot_add       the schedules considered, their times, why they lost
      stackc explain r1 --recompiles         the guards: if one fails, it is compiled again
      stackc explain net.py:net -i 'f32[8]' --breaks    where Dynamo leaves the graph, and why
      stackc explain r1 --sharding %h        the sharding of a value, and where it came from
      stackc explain r3/joint block.py:42    in a training step: kept or recomputed, and its cost
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of both subcommands."""
    parser = common.command(
        subparsers, "where", run_where, "from source to kernels and back", WHERE
    )
    parser.add_argument("saved", metavar="RUN", help="the folder of a saved run")
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a line, module, node, kernel or word"
    )
    parser.add_argument("--stage", metavar="NAME", help="show only this stage")
    common.add_wide(parser, common.EACH)
    common.add_json(parser, "stack.where/1")

    parser = common.command(
        subparsers, "explain", run_explain, "why a line was compiled as it was", EXPLAIN
    )
    parser.add_argument("saved", metavar="RUN", help="the folder of a run; a TARGET for --breaks")
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a line, module, node, kernel or step"
    )
    parser.add_argument(
        "other", nargs="?", metavar="B", help="explain whether B is in one kernel with WHAT"
    )
    parser.add_argument("--kernel", metavar="NAME", help="what bounds the time of this kernel")
    parser.add_argument("--tile", metavar="KERNEL", help="the schedules considered for this kernel")
    parser.add_argument(
        "--recompiles", action="store_true", help="the conditions that trigger a recompile"
    )
    parser.add_argument("--breaks", action="store_true", help="graph breaks of a program")
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="inputs of TARGET, as for dump",
    )
    parser.add_argument("--frontend", metavar="NAME", help="frontend of TARGET, as for dump")
    parser.add_argument("--sharding", metavar="VALUE", help="why this value has its sharding")
    parser.add_argument("--stage", metavar="NAME", help="show only this stage")
    common.add_wide(parser)
    common.add_json(parser, "stack.explain/1")


def run_where(args: argparse.Namespace) -> int:
    """Prints the nodes of each stage, and the kernels, that come from the argument WHAT.

    WHAT names a source line, module, node or kernel. Without it, prints the outcome of each op of
    the program.
    """
    run = load_run(args.saved)
    if args.what is None:
        return _print_fates(run, args)
    found = where(run, args.what)
    stages = {s: p for s, p in found.stages.items() if args.stage in (None, s)}
    kernels = [k for k in run.kernels if k["name"] in found.kernels]
    if args.json:
        nodes: dict[str, Any] = {
            s: [
                {"node": p.name, "text": p.text, "source": list(p.source), "in": list(p.path)}
                for p in held
            ]
            for s, held in stages.items()
        }
        document = {"schema": "stack.where/1", "what": found.what, "source": list(found.source)}
        common.print_json({**document, "stages": nodes, "kernels": found.kernels})
        return 0
    print(f"{args.what}: from {', '.join(found.source) or 'no source line'}")
    last: list[str] = []
    for stage, held in stages.items():
        shown = [_line(place) for place in held]
        if shown != last:
            print("\n".join(["", f"{stage}:", *shown]))
        last = shown
    if kernels:
        print("\nkernels:")
        print(kernel_rows([kernel_of(k) for k in kernels], most=8))
    return 0


def _line(place: NodeLocation) -> str:
    inside = f"   in {' > '.join(place.path)}" if place.path else ""
    return f"  {without_lines(place.text)}{inside}"


def _print_fates(run: SavedRun, args: argparse.Namespace) -> int:
    """Prints the outcome of every op of the program."""
    found = fates(retrace(run))
    if args.json:
        rows = [
            {"node": f.origin.mark, "op": f.origin.op, "source": list(f.origin.source),
             "fate": f.kind, "steps": list(f.steps)}
            for f in found
        ]  # fmt: skip
        common.print_json({"schema": "stack.fates/1", "nodes": rows})
        return 0
    print(fate_table(found))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Prints the explanation that the options of `stackc explain` select."""
    if args.breaks:
        return _print_lines(args, _breaks(args))
    run = load_run(args.saved)
    if args.sharding:
        return _print_lines(args, wing("mesh").why(run, args.sharding))
    if args.recompiles:
        guards = run.note("guards").splitlines()
        return _print_lines(args, guards or ["no guards besides its inputs"])
    if args.kernel:
        return _print_kernel(run, args)
    if args.tile:
        return _print_tiles(run, args)
    if args.what is None:
        raise UsageError(
            "nothing to explain: give a source line, a node, two nodes, --kernel or --tile"
        )
    if is_step(args.what) and not args.other:
        return _print_lines(args, explain_step(run, args.what))
    return _print_pairs(run, args) if args.other else _print_reasons(run, args)


def _print_kernel(run: SavedRun, args: argparse.Namespace) -> int:
    """Prints what bounds a kernel's time, which needs the wing `bench`, then its assembly with the
    source lines.
    """
    rows: list[tuple[str, str]] = call_if_here("kernel-bounds", run, args.kernel) or []
    code = beside_source(assembly(run, args.kernel)[1], run.sources)
    if args.json:
        document = {"schema": "stack.explain/1", "kernel": dict(rows), "assembly": code}
        common.print_json(document)
        return 0
    print(listing(rows))
    if code:
        print(f"\n{code}")
    return 0


def _print_tiles(run: SavedRun, args: argparse.Namespace) -> int:
    """Prints the schedules that were considered for a kernel."""
    choice = tiles.choice_of(run, args.tile)
    if args.json:
        common.print_json({"schema": "stack.explain/1", **choice})
        return 0
    print(f"{choice['group']}: {choice['domain'] or choice['by']}")
    if choice["schedules"]:
        print(table(tiles.HEADINGS, tiles.rows(choice), wrap=["why"], drop=["expected"]))
    return 0


def _breaks(args: argparse.Namespace) -> list[str]:
    """Returns the graph breaks of a program, with reasons; raises UsageError for a saved run."""
    common.check_frontend(args.frontend)
    target = resolve(args.saved, args.frontend, args.input)
    if not isinstance(target, ExampleCall):
        raise UsageError("--breaks needs a program, as `file.py:name`")
    breaks = find_frontend(target.fn, target.args, target.frontend).breaks(target.fn, target.args)
    return breaks or ["no graph breaks: it is one graph"]


def _print_lines(args: argparse.Namespace, lines: Sequence[str]) -> int:
    if args.json:
        common.print_json({"schema": "stack.explain/1", "lines": list(lines)})
    else:
        print("\n".join(lines))
    return 0


def _print_pairs(run: SavedRun, args: argparse.Namespace) -> int:
    """Prints why two nodes are, or are not, in one kernel."""
    pairs = explain_pairs(retrace(run), args.what, args.other)
    if args.json:
        rows = [
            {"a": p.a.origin.mark, "b": p.b.origin.mark, "together": p.is_together,
             "reasons": [{"word": r.word, "text": r.text, "by": r.by} for r in p.answers]}
            for p in pairs
        ]  # fmt: skip
        common.print_json({"schema": "stack.explain/1", "pairs": rows})
        return 0
    print(told(pairs))
    return 0


def _print_reasons(run: SavedRun, args: argparse.Namespace) -> int:
    """Prints what each pass did to the nodes of a source line, value or kernel."""
    reasons = [r for r in explain(run, args.what) if args.stage in (None, r.stage)]
    if args.json:
        rows = [{"stage": r.stage, "pass": r.pass_name, "text": r.text} for r in reasons]
        common.print_json({"schema": "stack.explain/1", "what": args.what, "reasons": rows})
        return 0
    last: tuple[str, str] | None = None
    for reason in reasons:
        if (reason.stage, reason.pass_name) != last:
            last = (reason.stage, reason.pass_name)
            print(f"{reason.stage}: {reason.pass_name}")
        print("  " + reason.text.replace("\n", "\n    "))
    if not reasons:
        print(f"no pass touched {args.what}")
    return 0
