"""`stackc report` and `stackc live`: a run as a web page, on disk or while it is edited."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError
from stack.explore.saved_run import is_run, load_run
from stack.explore.target import ExampleCall
from stack.report.content import Report, report_of
from stack.report.live_page import serve
from stack.report.make import fresh_report, profiled_report, with_errors, with_inner_passes
from stack.report.page import page
from stack.report.runs import side_by_side

REPORT = """
    Write everything that the compiler knows about a program as one web page: the graph of kernels
    beside the source and any two stages, the passes one by one with the reasons of their
    decisions, the memory over time, and the kernels with their code, times and shares of the
    roofline. The page is a single file. It opens from disk and
    loads nothing from the network.

    TARGET is a saved run, which is shown as it is, or a program, which is compiled first. With
    `--beside`, other runs are shown next to it: views show the same stage and scroll together.
    `stackc compare TARGET --html FILE` writes the same page with other compilers added.

    examples:
      stackc report r1 -o r1.html
      stackc report demos/transformer.py:llama_block -o block.html --profile
      stackc report model.py:net -i 'f32[8,128]' -o net.html --errors
      stackc report r1 --beside r2 -o runs.html
"""
LIVE = """
    Serve the page of `stackc report` on this machine's loopback address. It is rebuilt when you
    save the program's file or a file next to it that the program uses. If the program fails, the
    error appears at the bottom of the last working page. Ctrl-C ends it.

    examples:
      stackc live model.py:net -i 'f32[8,128]'
      stackc live demos/transformer.py:llama_block --port 8123
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of both subcommands."""
    parser = common.command(subparsers, "report", run, "a run as one web page", REPORT)
    common.add_target(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="write the page to this file"
    )
    common.add_compile(parser)
    parser.add_argument(
        "--profile", action="store_true", help="run it, and show times and shares of the roofline"
    )
    parser.add_argument(
        "--errors", action="store_true", help="show the rounding error of each value, against f64"
    )
    parser.add_argument(
        "--inner", action="store_true", help="show the IR after each pass inside of MLIR or Triton"
    )
    parser.add_argument(
        "--beside", action="append", default=[], metavar="RUN", help="show this saved run beside it"
    )
    parser = common.command(subparsers, "live", run_live, "a page that follows your file", LIVE)
    common.add_target(parser)
    common.add_compile(parser)
    parser.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the page."""
    text = page(report(args))
    Path(args.output).write_text(text, encoding="utf-8")
    common.progress(f"wrote {args.output} ({len(text.encode()) / 1e6:.2f} MB)")
    return 0


def report(args: argparse.Namespace) -> Report:
    """Builds the report that the arguments ask for."""
    others = [load_run(folder) for folder in args.beside]
    found = _own(args)
    if args.errors:
        found = with_errors(found, common.target_of(args), common.settings_of(args))
    if args.inner:
        found = with_inner_passes(found)
    if not args.beside:
        return found
    names = [Path(name).name or name for name in (args.target, *args.beside)]
    return side_by_side([found, *map(report_of, others)], names)


def _own(args: argparse.Namespace) -> Report:
    """Builds the report of the target alone."""
    if is_run(Path(args.target)) and not args.profile:
        return report_of(load_run(args.target))
    target = common.target_of(args)
    settings = common.settings_of(args)
    if args.profile:
        return profiled_report(target, settings, common.progress)
    return fresh_report(target, settings)


def run_live(args: argparse.Namespace) -> int:
    """Serves the page until interrupted."""
    target = common.target_of(args)
    if not isinstance(target, ExampleCall):
        raise UsageError(
            f"{args.target} is not a program: a saved run does not change, so use `report`"
        )
    return serve(words_of(args), files_of(target), args.port, common.progress)


def words_of(args: argparse.Namespace) -> list[str]:
    """Formats the options that `report` and `live` share as words of a command line.

    The live page runs `stackc report` with them.
    """
    flags = {"frontend": args.frontend, "backend": args.backend, "target": args.machine}
    words = [args.target, "--passes", args.passes]
    words += [f"--{k}={v}" for k, v in flags.items() if v]
    words += [f"--{k}" for k in ("strict", "dynamic") if getattr(args, k)]
    for flag, given in (("input", args.input), ("schedule", args.schedule)):
        words += [f"--{flag}={text}" for text in given]
    return [*words, *(f"--plugin={file}" for file in args.plugin)]


def files_of(target: ExampleCall) -> list[Path]:
    """Returns the files to watch: that of a program, and loaded modules in the same folder."""
    first = sys.modules.get(getattr(target.fn, "__module__", type(target.fn).__module__))
    left = Path(target.spec.rpartition(":")[0])
    own = left if left.suffix == ".py" else Path(getattr(first, "__file__", "") or "")
    folder = own.resolve().parent
    loaded = {getattr(m, "__file__", None) for m in list(sys.modules.values())}
    beside = {Path(f) for f in loaded if f and Path(f).parent == folder}
    return sorted({own.resolve(), *beside})
