"""`stackc completion`: commands, options and files, completed by a shell."""

from __future__ import annotations

import argparse
import importlib

from stack.commands import common
from stack.errors import UsageError
from stack.releases import install_hint

SHELLS = ("bash", "zsh", "tcsh")
TEXT = """
    Print a script that completes commands, options, choices and file names in a shell. It needs
    the extra `completion`.

    examples:
      eval "$(stackc completion bash)"                     in ~/.bashrc
      stackc completion zsh > ~/.zfunc/_stackc
"""


def add(subparsers: common.Subparsers) -> None:
    """The subcommand's arguments."""
    parser = common.command(subparsers, "completion", run, "completion for a shell", TEXT)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    try:
        shtab = importlib.import_module("shtab")
    except ModuleNotFoundError as error:
        raise UsageError(f"shtab is not installed: {install_hint('completion')}") from error
    parser: argparse.ArgumentParser = args.parser
    (commands,) = (a for a in parser._actions if isinstance(a.choices, dict))  # pyright: ignore[reportPrivateUsage]
    for command in dict(commands.choices or {}).values():
        for action in command._actions:
            if action.choices:
                action.choices = tuple(action.choices)  # shtab takes a dict for subcommands
            elif action.nargs != 0:
                vars(action)["complete"] = shtab.FILE
    print(shtab.complete(parser, shell=args.shell))
    return 0
