"""`stackc passes`, `stages`, `ops`, `backends`, `glossary`, `env`: tables of what is installed."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from stack.commands import common
from stack.errors import unknown_name
from stack.explore import inventory
from stack.explore.op_table import reference
from stack.explore.table import listing, table

KINDS: dict[str, tuple[str, str, Callable[[], list[dict[str, Any]]], tuple[str, ...]]] = {
    "passes": (
        "passes and their options",
        "Every installed pass, including third-party ones, with its options and defaults.",
        inventory.passes,
        ("name", "options", "doc"),
    ),
    "stages": (
        "stages of every backend",
        "For each backend, the stages that a program goes through and their passes.",
        inventory.stages,
        ("backend", "stage", "pipeline"),
    ),
    "ops": (
        "the op table",
        "Every op: operands, attributes, the levels where it may appear and what it computes.\n"
        "The name of a family, as attention, shows the operators in it.",
        inventory.ops,
        ("name", "kind", "operands", "attributes", "levels", "doc"),
    ),
    "backends": (
        "backends and peers",
        "Every backend and peer, and if it can run here.",
        inventory.backends,
        ("name", "role", "takes", "state", "doc"),
    ),
    "glossary": (
        "definitions of terms",
        "Definitions of passes, steps, attributes, options, kinds of kernels, words in notes,"
        "\nwith a source for each.",
        inventory.glossary,
        ("name", "kind", "line", "source"),
    ),
    "env": (
        "versions and machine",
        "Versions, machine, threads and plugins. Include these in a bug report.",
        inventory.env,
        ("name", "value"),
    ),
}


WRAPPED = ("options", "attributes", "doc", "line", "source", "value", "state")
DROPPED = ("source", "levels", "takes", "role", "attributes", "options")
EXAMPLES = {
    "passes": "fuse", "stages": "mlir", "ops": "attention", "backends": "xla", "glossary": "stream",
}  # fmt: skip


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of the subcommands."""
    for name, (summary, text, _, _) in KINDS.items():
        example = f"\n\nexamples:\n  stackc {name}\n  stackc {name} --json"
        if name != "env":
            one = EXAMPLES[name]
            example += f"\n  stackc {name} {one}"
        parser = common.command(subparsers, name, run, summary, text + example)
        parser.add_argument("name", nargs="?", metavar="NAME", help="show only this entry, in full")
        common.add_wide(parser)
        common.add_json(parser, f"stack.{name}/1")
        parser.set_defaults(kind=name, markdown=False)
        if name == "ops":
            parser.add_argument(
                "--markdown", action="store_true", help="the ops of the IR as a reference page"
            )


def run(args: argparse.Namespace) -> int:
    """Prints the table, or one entry."""
    if args.markdown:
        print(reference())
        return 0
    _, _, rows_of, columns = KINDS[args.kind]
    rows = rows_of()
    if args.name is not None:
        rows = pick(rows, args.name, args.kind)
    if args.json:
        common.print_json({"schema": f"stack.{args.kind}/1", args.kind: rows})
    elif all(row.get("name", "") == args.name for row in rows):
        for row in rows:
            print(listing(((k, value_text(value)) for k, value in row.items()), column=13))
    else:
        shown = [[first_line(value_text(row[c])) for c in columns] for row in rows]
        print(table(list(columns), shown, drop=DROPPED, wrap=WRAPPED))
    return 0


def pick(rows: Sequence[dict[str, Any]], name: str, kind: str) -> list[dict[str, Any]]:
    """Returns the rows called `name`, or whose name starts with `name.`.

    Of stages, returns those of the backend `name`. Raises UsageError with a similar name if there
    are none.
    """
    key = "backend" if kind == "stages" else "name"
    found = [row for row in rows if row[key] == name or str(row[key]).startswith(f"{name}.")]
    if not found:
        known = list(dict.fromkeys(str(row[key]) for row in rows))
        raise unknown_name(f"`stackc {kind}` has no entry", name, known, see=f"stackc {kind}")
    return found


def value_text(value: Any) -> str:
    """Formats one value of a row."""
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())  # pyright: ignore
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)  # pyright: ignore
    return inspect.cleandoc(str(value))


def first_line(text: str) -> str:
    """Returns the first line of a text."""
    return text.split("\n", 1)[0]
