"""`stackc`: the command line. Subcommands live in stack/commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from stack import wings
from stack.commands import (
    completion,
    dump,
    explain,
    inventory,
    opt,
    run,
    show,
    targets,
    wing_stub,
)
from stack.commands.help_text import Help
from stack.errors import StackError, unknown_name
from stack.explore.lowering import report_failure
from stack.explore.terminal import viewed
from stack.plugins import add_file
from stack.run.rejected_arguments import own_error

TEXT = """\
Watch a PyTorch module or a JAX function become machine code, stage by stage, and compare it with
the results of other compilers.

  stackc dump demos/transformer.py:llama_block -o r1     compile, write every stage to r1/
  stackc show r1 fused                                   read a stage
  stackc diff r1:canonical r1:fused                      what a stage changed
  stackc where r1 models.py:250                          where a source line went
  stackc explain r1 y out                                why they are, or are not, one kernel
  stackc opt r1:imported --pass-pipeline=canonicalize    run passes over IR text
  stackc new pass mine --kind fusion                     a pass of your own, with its tests
  stackc check-rule mine.py:my_rule                      a counterexample for a rewrite rule
  stackc bisect demos/transformer.py:llama_block         the first wrong pass, rewrite or kernel
  stackc targets sm_90                                   the numbers that passes decide by

`stackc COMMAND --help` says more, with examples.

exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported op, 4 verifier error, 5 backend missing
"""

COMMANDS = (*(dump, show, explain, opt, run, inventory, targets, completion),)


def build_parser() -> argparse.ArgumentParser:
    """Returns the argument parser of command `stackc`, with a subparser for each subcommand."""
    parser = argparse.ArgumentParser(
        prog="stackc",
        description=TEXT,
        formatter_class=Help,
    )
    parser.add_argument("--version", action=Version)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (*COMMANDS, *wings.commands()):
        module.add(subparsers)
    wing_stub.add(subparsers)
    parser.set_defaults(commands=tuple(subparsers.choices), parser=parser)
    return parser


class Version(argparse.Action):
    """The argparse action of `--version`: prints the version and exits. Looks the version up only
    then, so that other commands start faster.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, 0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from stack.explore.inventory import versions

        print(f"stackc {versions()['stack-compiler']}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; usage errors of argparse exit with 2."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else argv
    known = parser.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in known:
        parser.error(str(unknown_name("no command", words[0], known)))
    args, left = parser.parse_known_args(argv)
    if left and not getattr(args, "takes_any", False):
        args.command.error(_unrecognized(args.command, left))
    try:
        for file in args.plugin:
            add_file(file)
        with viewed(is_whole=getattr(args, "wide", False)):
            return int(args.run(args))
    except StackError as error:
        print(f"stackc: error: {report_failure(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # the reader of a pipe went away, as in `stackc show r1 fused | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stackc: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        said = own_error(error)
        if not said:
            raise
        print(f"stackc: error: {said}", file=sys.stderr)
        return 1


def _unrecognized(command: argparse.ArgumentParser, left: Sequence[str]) -> str:
    """Returns the error text for arguments that a command does not take, with the nearest known
    flag.
    """
    known = [flag for action in command._actions for flag in action.option_strings]  # pyright: ignore[reportPrivateUsage]
    flag = next((word for word in left if word.startswith("-")), "")
    if not flag:
        return f"unrecognized arguments: {' '.join(left)}"
    return str(unknown_name("unrecognized argument", flag.partition("=")[0], known))


if __name__ == "__main__":
    raise SystemExit(main())
