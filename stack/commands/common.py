"""Shared parts of the subcommands: argument groups, progress on stderr, JSON on stdout."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import stack.plugins as plugins
from stack.commands.help_text import Help
from stack.errors import UsageError, unknown_name
from stack.explore.lowering import Settings
from stack.explore.target import CommandTarget, resolve
from stack.run.compile import DEFAULT_BACKEND
from stack.run.pipeline_edits import DEFAULT
from stack.run.specs import parse_backends

EACH = ", and a row for each layer"  # what --wide shows besides
Subparsers = Any  # argparse's own class has no public name
Command = Callable[[argparse.Namespace], int]


def command(
    subparsers: Subparsers, name: str, run: Command, summary: str, text: str
) -> argparse.ArgumentParser:
    """Adds a subcommand whose help text ends in examples."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(text).strip(),
        formatter_class=Help,
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that declares operators (stack.op) or passes (stack.register_pass)",
    )
    parser.set_defaults(run=run, command=parser)
    return parser


def add_target(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Adds the arguments TARGET, --input and --frontend; `also` names what else TARGET may be."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=f"{also}file.py:name or pkg.mod:name (a module, a function, or a factory that returns"
        " (callable, args)), the folder of a saved run, or a file of IR text, ONNX or StableHLO",
    )
    add_inputs(parser)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Adds --input and --frontend."""
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="one argument, as 'f32[2,16,64]', or 'i64[2,16]<100' for integers from 0 to 99; once"
        " for each argument; --dynamic makes sizes symbolic",
    )
    parser.add_argument(
        "--frontend",
        metavar="NAME",
        help=f"one of: {', '.join(plugins.names('stack.frontends'))} (default: detected from the"
        " program); passed to factories that take frontend=",
    )


def add_compile(parser: argparse.ArgumentParser, several_passes: bool = False) -> None:
    """Adds the options that control compilation; `several_passes` lets --passes be repeated."""
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help=f"see `stackc backends` (default: {DEFAULT_BACKEND}); with options as"
        " 'triton{excess_precision=false}', see `stackc backends NAME`",
    )
    parser.add_argument(
        "--target",
        dest="machine",
        default="",
        metavar="NAME|FILE",
        help="the machine to compile for, as sm_80 or avx2, see `stackc targets`; or a file that"
        " `stackc calibrate` wrote (default: this machine)",
    )
    add_passes(parser, several_passes)
    add_schedule(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse ops that would fall back to the framework: lists them all, exit code 3",
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="symbolic sizes, if the framework supports them"
    )


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """Adds `--mesh` and `--shard`."""
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        help="split the program over ranks, as dp=2,tp=4, and show its stages",
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="'NAME: AXES'",
        help="the sharding of a value, one entry per dim: an axis, - for none, ? for open,"
        " {dp, tp} for two; NAME may contain *, or be `return 0`; --strict refuses to choose",
    )


def pipeline(text: str) -> str:
    """Returns the text of --passes, with the pipeline that is changed if only changes are given."""
    return f"{DEFAULT},{text}" if text.startswith(("+", "-")) else text


def add_passes(parser: argparse.ArgumentParser, several: bool) -> None:
    """Adds the option --passes; with `several`, it may be repeated, once for each system."""
    parser.add_argument(
        "--passes",
        type=pipeline,
        action="append" if several else "store",
        default=None if several else DEFAULT,
        metavar="PIPELINE",
        help="such as 'canonicalize,fuse{max_inputs=8}', instead of the stages up to"
        " `scheduled` (tiled and loop still run); or changes to the backend's own pipeline, as"
        " '+file.py:Mine@fused,-layout'; write --passes=-layout, with =, if it begins with -"
        + ("; repeatable: each is one system" if several else ""),
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Adds --schedule."""
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="NAME:SCHEDULE|FILE",
        help="schedule of the group of a value: blocks of its axes, as 'y: m=128 n=64 k=32 stages=3"
        " warps=8' for a GPU or 'y: m=6 n=16' for a CPU, whose compiler picks the rest; or a list"
        " of steps, 'y: split r 64; vectorize r.1'; repeatable, or a file with one per line",
    )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Adds --memory."""
    parser.add_argument(
        "--memory",
        action="store_true",
        help="print the values that are in memory at the peak, with their bytes by source line",
    )


def add_graph(parser: argparse.ArgumentParser) -> None:
    """Adds --graph."""
    parser.add_argument(
        "--graph",
        metavar="FILE",
        help="write the graph of the stage (default: imported), with modules as clusters and types"
        " on edges: FILE.dot for Graphviz and Netron, FILE.json for Model Explorer",
    )


def add_json(parser: argparse.ArgumentParser, schema: str) -> None:
    """Adds --json."""
    parser.add_argument(
        "--json", action="store_true", help=f"one JSON document (schema {schema}) on stdout"
    )


def add_wide(parser: argparse.ArgumentParser, rows: str = "") -> None:
    """Adds --wide; `rows` is part of its help, and says which rows the option also shows."""
    parser.add_argument(
        "--wide",
        action="store_true",
        help=f"show every column and whole cells{rows}, however wide the lines become",
    )


def target_of(args: argparse.Namespace) -> CommandTarget:
    """Returns the target named by the arguments."""
    check_frontend(args.frontend)
    return resolve(args.target, args.frontend, args.input)


def check_frontend(name: str | None) -> None:
    """Raises an error that lists the installed frontends if `name` is not one of them."""
    known = plugins.names("stack.frontends")
    if name is not None and name not in known:
        raise unknown_name("no frontend", name, known)


def settings_of(args: argparse.Namespace) -> Settings:
    """Returns the compile settings given by the arguments."""
    chosen = None
    if args.backend:
        chosen, *more = parse_backends(args.backend)
        if more:
            raise UsageError(f"--backend takes one backend here, not {args.backend!r}")
    return Settings(
        chosen.backend if chosen else None,
        args.passes,
        args.strict,
        args.dynamic,
        args.frontend,
        args.machine,
        chosen.options if chosen else {},
        tuple(args.schedule),
    )


def progress(text: str) -> None:
    """Prints one line about work that takes long on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Prints one JSON document on stdout."""
    print(json.dumps(document, indent=2))
