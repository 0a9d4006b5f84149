"""`stackc new` and `watch`: create a package for a new pass; run its tests at every save."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError
from stack.testing.scaffold import KINDS, new_pass
from stack.testing.watch import watch

NEW = """
    Create a package for a new pass, outside of this repository. It contains the pass, its entry
    point, a test of what the pass must change and what it must leave unchanged, the same test as
    text with CHECK lines, and a README with the commands to try it.

    examples:
      stackc new pass mine --kind pattern
      stackc new pass siblings --kind horizontal -o ~/passes
      stackc new pass blocks_of_64 --kind schedule        your own steps for every kernel
"""
WATCH = """
    Run the tests of some folders or files, and run them again at every save. Ctrl-C ends it.

    examples:
      stackc watch .
      stackc watch mine.py tests
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of both subcommands."""
    parser = common.command(subparsers, "new", run_new, "a new pass as a package", NEW)
    parser.add_argument("what", choices=["pass"], help="the kind of package")
    parser.add_argument("name", metavar="NAME", help="name of the pass and its package")
    kinds = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    parser.add_argument("--kind", default="pattern", metavar="KIND", help=kinds)
    parser.add_argument("-o", "--output", default=".", metavar="DIR", help="folder to create it in")

    parser = common.command(subparsers, "watch", run_watch, "tests at every save", WATCH)
    parser.add_argument(
        "paths", nargs="*", default=["."], metavar="PATH", help="folders or files (default: .)"
    )
    parser.add_argument("--turns", type=int, metavar="N", help="end after N runs")


def run_new(args: argparse.Namespace) -> int:
    """Writes the package."""
    folder = new_pass(args.name, args.kind, args.output)
    print(f"wrote {folder}: read its README.md, then run its tests with `stackc watch {folder}`")
    return 0


def run_watch(args: argparse.Namespace) -> int:
    """Runs pytest until interrupted; the exit code is that of the last run."""
    paths = [Path(path) for path in args.paths]
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no file or folder {path}")
    codes = [0]

    def run(changed: list[Path]) -> None:
        if changed:
            common.progress(f"saved: {', '.join(str(path) for path in changed[:3])}")
        folders = [str(p) for p in paths if p.is_dir() or p.name.startswith("test_")] or ["."]
        command = [sys.executable, "-m", "pytest", "-q", *folders]
        codes.append(subprocess.run(command, check=False).returncode)

    watch(paths, run, args.turns)
    return codes[-1]
