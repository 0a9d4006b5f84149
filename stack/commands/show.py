"""`stackc show`, `diff`: view runs and IR text."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError
from stack.explore.diff import diff_runs, diff_texts, summary, without_lines
from stack.explore.dump import describe
from stack.explore.memory import memory_peak
from stack.explore.saved_run import SavedRun, is_run, load_run
from stack.explore.steps import is_step, same_run, stage_text
from stack.explore.table import table
from stack.ir import files
from stack.wings import wing

SHOW = """
    Show a saved run, one of its stages, one of its kernels, or a file of IR text.

    examples:
      stackc show r1                   the tables of the run
      stackc show r1 --wide            every column, and a row for each kernel of equal layers
      stackc show r1 fused             a stage (captured, imported, ..., asm)
      stackc show r1 fused --no-lines  no source lines
      stackc show g1 out.step3         the kernel of %out after step 3; step0: its loop nest
      stackc show r1 --kernel k3       the code of a kernel
      stackc show r1 --memory          what is in memory at the peak, by source line
      stackc show r1 fused --graph r1.dot    the graph for Graphviz and Netron
      stackc show block.stack          parse, check and print IR text
"""
DIFF = """
    Show what changed between two stages, as a unified diff. Value names survive passes, so an
    unchanged value keeps its line. A line that only moved is marked with ~.

    A and B are RUN:STAGE, files, or runs. Two runs without --stage are compared stage by stage.
    Exit code 0 if nothing differs, else 1.

    examples:
      stackc diff r1:canonical r1:fused
      stackc diff r1:canonical fused      the same
      stackc diff g1:out.step1 out.step2  what step 2 did to the kernel of %out
      stackc diff r1 r2
      stackc diff r1 r2 --stage fused
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of both subcommands."""
    parser = common.command(subparsers, "show", run_show, "a run, a stage, a kernel, IR text", SHOW)
    parser.add_argument("run_or_file", metavar="RUN_OR_FILE", help="a saved run, or IR text")
    parser.add_argument("stage", nargs="?", metavar="STAGE", help="a stage, or a step as y.step3")
    parser.add_argument("--kernel", metavar="NAME", help="print the code of this kernel")
    parser.add_argument("--no-lines", action="store_true", help="print no source lines")
    common.add_memory(parser)
    common.add_graph(parser)
    common.add_wide(parser, common.EACH)
    common.add_json(parser, "stack.run/1")

    parser = common.command(subparsers, "diff", run_diff, "what changed between two stages", DIFF)
    parser.add_argument("a", metavar="A", help="RUN:STAGE, a file, or a run")
    parser.add_argument("b", metavar="B", help="the same; or only a stage of the run of A")
    parser.add_argument("--stage", metavar="NAME", help="compare this stage of both runs")
    parser.add_argument("--lines", action="store_true", help="compare source lines too")
    parser.add_argument(
        "-U", "--context", type=int, default=2, metavar="N", help="unchanged lines around a change"
    )


def run_show(args: argparse.Namespace) -> int:
    """Prints a run, a stage, a kernel or a file."""
    path = Path(args.run_or_file)
    if path.is_dir():
        return _show_run(load_run(path), args)
    left, colon, stage = args.run_or_file.rpartition(":")
    if colon and is_run(Path(left)):
        args.stage = stage
        return _show_run(load_run(left), args)
    if args.stage or args.kernel:
        raise UsageError(f"{path} is not the folder of a run, so it has no stages and no kernels")
    if path.suffix == ".py":
        raise UsageError(
            f"{path} is a Python file: `stackc dump {path}:NAME` compiles a program in it"
        )
    text = str(files.load(path))
    print((without_lines(text) if args.no_lines else text).rstrip())
    return 0


def _show_run(run: SavedRun, args: argparse.Namespace) -> int:
    if args.graph:
        wing("report").write_graph(run.func(args.stage or "imported"), Path(args.graph))
        common.progress(f"wrote {args.graph}")
    elif args.memory:
        print(memory_peak(run))
    elif args.kernel:
        print(run.kernel_text(args.kernel).rstrip())
    elif args.stage:
        text = stage_text(run, args.stage)
        is_ir = is_step(args.stage) or run.is_ir(args.stage)
        print((without_lines(text) if args.no_lines and is_ir else text).rstrip())
    elif args.json:
        common.print_json(run.manifest)
    else:
        print(describe(run.manifest))
    return 0


def _side(spec: str, stage: str | None) -> tuple[str, str]:
    """Returns a title and the text for one side of a diff: a stage of a run, or a text file.

    `spec` is RUN, RUN:STAGE or a file; `stage` is the stage to use for RUN. Raises UsageError if
    `spec` is none of these.
    """
    path = Path(spec)
    if path.is_dir():
        run = load_run(path)
        if stage is None:
            raise UsageError(
                f"{spec} is a run and needs a stage: write {spec}:STAGE or add --stage"
            )
        return f"{spec}:{stage}", stage_text(run, stage)
    left, colon, name = spec.rpartition(":")
    if colon and is_run(Path(left)):
        return spec, stage_text(load_run(left), name)
    if colon and not path.exists():
        raise UsageError(f"{spec}: {left} is not the folder of a run, and there is no such file")
    try:
        return spec, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{spec} is neither a run, RUN:STAGE nor a text file: {error}") from error


def run_diff(args: argparse.Namespace) -> int:
    """Prints the diff; the exit code is 1 if there is one."""
    if args.stage is None and is_run(Path(args.a)) and is_run(Path(args.b)):
        rows = diff_runs(load_run(args.a), load_run(args.b))
        print(table(["stage", "state"], rows))
        return int(any(state != "same" for _, state in rows))
    (name_a, a), (name_b, b) = (
        _side(spec, args.stage) for spec in (args.a, same_run(args.b, args.a))
    )
    if not args.lines:
        a, b = without_lines(a), without_lines(b)
    text = diff_texts(a, b, (name_a, name_b), args.context)
    if not text:
        return 0
    print(text, end="")
    common.progress(summary(text))
    return 1
