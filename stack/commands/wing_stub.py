"""Commands of wings that are missing or broken: each says why, and how to get its wing."""

from __future__ import annotations

import argparse

from stack.commands import common
from stack.wings import WINGS, wing


def add(subparsers: common.Subparsers) -> None:
    """Adds each command of a wing that the wing itself did not add."""
    for name, held in WINGS.items():
        for command in held.commands:
            if command not in subparsers.choices:
                text = f"    This needs the wing {name!r}: {held.what}."
                parser = common.command(subparsers, command, run, f"needs the wing {name!r}", text)
                parser.add_argument("words", nargs="*", metavar="...", help="any arguments")
                parser.set_defaults(wing=name, takes_any=True)


def run(args: argparse.Namespace) -> int:
    """Raises WingMissing."""
    wing(args.wing)
    raise AssertionError(f"the wing {args.wing!r} is here, and its command is not")
