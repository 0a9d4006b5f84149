"""`stackc show`, `diff`, `where`, `explain`: looking at runs and at IR text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import stack.explore.tiles as tiles
from stack.commands import common
from stack.errors import UsageError
from stack.explore.diff import diff_runs, diff_texts, one_stage, summary, without_lines
from stack.explore.dump import describe, source_text
from stack.explore.saved import SavedRun, is_run, load_run
from stack.explore.sharding import notes_of
from stack.explore.table import table
from stack.explore.where import explain, where
from stack.ir import files

SHOW = """
    Show a saved run, one of its stages, one of its kernels, or a file of IR text.

    examples:
      stackc show r1                   the tables of the run
      stackc show r1 fused             a stage (captured, imported, ..., asm)
      stackc show r1 fused --no-lines  without source lines
      stackc show r1 --kernel k3       the code of a kernel
      stackc show block.stack          parse, check and print IR text
"""
DIFF = """
    What changed between two stages: a unified diff. Value names survive passes, so an unchanged
    value keeps its line; a line that only moved is marked with ~.

    A and B are RUN:STAGE, files, or runs; two runs without --stage are compared stage by stage.
    Exit code 0 where nothing differs, 1 otherwise.

    examples:
      stackc diff r1:canonical r1:fused
      stackc diff r1 r2
      stackc diff r1 r2 --stage fused
"""
WHERE = """
    Where a source line went, and where a node or a kernel came from.

    WHAT is a source line (block.py:42), a file, a module path (attn.wq), a node or a kernel.

    examples:
      stackc where r1 transformer.py:42
      stackc where r1 softmax
      stackc where r1 kernel_3
"""
EXPLAIN = """
    Why a line became what it is: what each pass rewrote there, which groups it formed, what it
    refused to fuse and which rules nearly applied. Reads the saved stages and runs their
    pipelines again, so it needs neither the framework nor the model.

    examples:
      stackc explain r1 transformer.py:42
      stackc explain r1 softmax --stage fused
      stackc explain r1 --sharding %h        where a value lies on a mesh, and from whom it has that
      stackc explain r1 --tile dot_add       the schedules considered, their times, why they lost
      stackc explain r3/joint block.py:42    of a training step: kept or recomputed, at what price
"""


def add(subparsers: common.Subparsers) -> None:
    """The subcommands' arguments."""
    parser = common.command(subparsers, "show", run_show, "a run, a stage, a kernel, IR text", SHOW)
    parser.add_argument("run_or_file", metavar="RUN_OR_FILE")
    parser.add_argument("stage", nargs="?", metavar="STAGE")
    parser.add_argument("--kernel", metavar="NAME", help="print the code of this kernel")
    parser.add_argument("--no-lines", action="store_true", help="leave source lines out")
    common.add_json(parser, "stack.run/1")

    parser = common.command(subparsers, "diff", run_diff, "what changed between two stages", DIFF)
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--stage", metavar="NAME", help="this stage of both runs")
    parser.add_argument("--lines", action="store_true", help="compare source lines too")
    parser.add_argument("-U", "--context", type=int, default=2, metavar="N")

    parser = common.command(
        subparsers, "where", run_where, "from source to kernels and back", WHERE
    )
    parser.add_argument("saved", metavar="RUN")
    parser.add_argument("what", metavar="WHAT")
    parser.add_argument("--stage", metavar="NAME", help="this stage only")
    common.add_json(parser, "stack.where/1")

    parser = common.command(subparsers, "explain", run_explain, "why a line became that", EXPLAIN)
    parser.add_argument("saved", metavar="RUN")
    parser.add_argument("what", nargs="?", metavar="WHAT")
    parser.add_argument("--sharding", metavar="VALUE", help="why this value lies where it does")
    parser.add_argument("--tile", metavar="KERNEL", help="the schedules considered for this kernel")
    parser.add_argument("--stage", metavar="NAME", help="this stage only")
    common.add_json(parser, "stack.explain/1")


def run_show(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    path = Path(args.run_or_file)
    if path.is_dir():
        return _show_run(load_run(path), args)
    left, colon, stage = args.run_or_file.rpartition(":")
    if colon and is_run(Path(left)):
        args.stage = stage
        return _show_run(load_run(left), args)
    if args.stage or args.kernel:
        raise UsageError(f"{path} is not the folder of a run, so it has no stages and no kernels")
    text = str(files.load(path))
    print((without_lines(text) if args.no_lines else text).rstrip())
    return 0


def _show_run(run: SavedRun, args: argparse.Namespace) -> int:
    if args.kernel:
        print(run.kernel_text(args.kernel).rstrip())
    elif args.stage:
        text = run.text(args.stage)
        print((without_lines(text) if args.no_lines and run.is_ir(args.stage) else text).rstrip())
    elif args.json:
        common.print_json(run.manifest)
    else:
        print(describe(run.manifest))
    return 0


def _side(spec: str, stage: str | None) -> tuple[str, str]:
    """Name and text of one side of a diff."""
    path = Path(spec)
    if path.is_dir():
        run = load_run(path)
        if stage is None:
            raise UsageError(f"which stage of {spec}? write {spec}:STAGE or add --stage")
        return f"{spec}:{stage}", one_stage(run, stage)
    left, colon, name = spec.rpartition(":")
    if colon and is_run(Path(left)):
        return spec, one_stage(load_run(left), name)
    try:
        return spec, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{spec} is neither a run, RUN:STAGE nor a text file: {error}") from error


def run_diff(args: argparse.Namespace) -> int:
    """Print the diff; exit code 1 where there is one."""
    if args.stage is None and is_run(Path(args.a)) and is_run(Path(args.b)):
        rows = diff_runs(load_run(args.a), load_run(args.b))
        print(table(["stage", "state"], rows))
        return int(any(state != "same" for _, state in rows))
    (name_a, a), (name_b, b) = _side(args.a, args.stage), _side(args.b, args.stage)
    if not args.lines:
        a, b = without_lines(a), without_lines(b)
    text = diff_texts(a, b, (name_a, name_b), args.context)
    if not text:
        return 0
    print(text, end="")
    common.progress(summary(text))
    return 1


def run_where(args: argparse.Namespace) -> int:
    """Print the places of WHAT."""
    run = load_run(args.saved)
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
    for stage, held in stages.items():
        print(f"\n{stage}:")
        for place in held:
            inside = f"   in {' > '.join(place.path)}" if place.path else ""
            print(f"  {without_lines(place.text)}{inside}")
    if kernels:
        print("\nkernels:")
        rows = [[k["name"], k["kind"], source_text(k["source"], 8)] for k in kernels]
        print(table(["kernel", "kind", "source"], rows))
    return 0


def _print_tiles(args: argparse.Namespace) -> int:
    """The schedules that were considered for a kernel."""
    choice = tiles.choice_of(load_run(args.saved), args.tile)
    if args.json:
        common.print_json({"schema": "stack.explain/1", **choice})
        return 0
    print(f"{choice['group']}: {choice['domain'] or choice['by']}")
    if choice["schedules"]:
        print(table(tiles.HEADINGS, tiles.rows(choice)))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Print what passes did there."""
    if args.sharding:
        for stage, note in notes_of(load_run(args.saved), args.sharding):
            print(f"{stage}: {note}")
        return 0
    if args.tile:
        return _print_tiles(args)
    if args.what is None:
        raise UsageError("explain what? a source line, a node, --sharding VALUE or --tile KERNEL")
    reasons = [r for r in explain(load_run(args.saved), args.what) if args.stage in (None, r.stage)]
    if args.json:
        told = [{"stage": r.stage, "pass": r.pass_name, "text": r.text} for r in reasons]
        common.print_json({"schema": "stack.explain/1", "what": args.what, "reasons": told})
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
