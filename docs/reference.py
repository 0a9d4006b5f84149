"""The reference pages, generated from the code: `python docs/reference.py FOLDER` writes them.

MkDocs asks for them through docs/hooks.py each time it builds the site, so they are not in git.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import stack
from stack.cli import build_parser
from stack.commands.inventory import value_text
from stack.commands.targets import rows_of
from stack.explore import inventory
from stack.explore.op_table import reference as ops_page
from stack.target import load, names
from stack.target.record import kind_of


def pages() -> dict[str, str]:
    """The text of each page, by its path in docs/."""
    made: dict[str, Callable[[], str]] = {
        "api": api,
        "backends": backends,
        "commands": commands,
        "glossary": glossary,
        "operators": operators,
        "ops": ops,
        "passes": passes,
        "stages": stages,
        "targets": targets,
    }
    return {f"reference/{name}.md": page().rstrip() + "\n" for name, page in made.items()}


def api() -> str:
    """Returns the names of `import stack`, with signatures and docstrings."""
    parts = ["# Python API", "`import stack` loads NumPy only; frameworks load when they are used."]
    for name in stack.__all__:
        found = getattr(stack, name)
        if inspect.ismodule(found):
            parts += [f"## stack.{name}", text_block(inspect.getdoc(found) or "")]
            raised = [
                [f"`{key}`", first_line(inspect.getdoc(value) or "")]
                for key, value in vars(found).items()
                if inspect.isclass(value) and value.__module__ == found.__name__
            ]
            parts.append(table(["name", "what it says"], raised))
            continue
        parts += [f"## stack.{name}", code_block(signature(name, found))]
        parts.append(text_block(inspect.getdoc(found) or ""))
        if inspect.isclass(found):
            members = [
                [f"`{key}`", first_line(doc)]
                for key, value in vars(found).items()
                if not key.startswith("_") and (doc := doc_of(value))
            ]
            parts += [table(["member", "what it does"], members)] if members else []
    return "\n\n".join(parts)


def backends() -> str:
    """Each backend and peer with its options."""
    parts = [
        "# Backends and their options",
        "Options follow the name: `--backend 'triton{tune=true}'`. `stackc backends` says which of"
        " them run on your machine.",
    ]
    for row in inventory.backends():
        parts += [f"## {row['name']}", f"{row['role']}; takes programs at the {row['takes']}."]
        parts.append(text_block(value_text(row["doc"])))
    return "\n\n".join(parts)


def commands() -> str:
    """The help text of each subcommand."""
    (action,) = (a for a in build_parser()._actions if getattr(a, "choices", None))  # pyright: ignore
    parts = [
        "# Commands",
        "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported op, 4 verifier error, 5 backend"
        " missing.",
    ]
    for name, parser in dict(action.choices).items():
        parts += [f"## stackc {name}", text_block(parser.format_help())]
    return "\n\n".join(parts)


def glossary() -> str:
    """The words of passes, attributes and notes, by kind."""
    rows = inventory.glossary()
    parts = ["# Glossary", "`stackc glossary WORD` prints one entry."]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        found = [
            [f"`{row['name']}`", row["line"], row["source"]]
            for row in sorted(rows, key=lambda row: str(row["name"]))
            if row["kind"] == kind
        ]
        parts += [f"## {kind}", table(["word", "meaning", "source"], found)]
    return "\n\n".join(parts)


def operators() -> str:
    """The hosted operators, by family."""
    rows = [row for row in inventory.ops() if row["kind"] == "hosted"]
    parts = [
        "# Hosted operators",
        "Each is one declaration: an operator of torch, a primitive of JAX, and a node of the IR."
        " `stackc ops NAME` prints its kernels and derivative.",
    ]
    for family in dict.fromkeys(str(row["name"]).partition(".")[0] for row in rows):
        found = [
            [f"`{row['name']}`", first_line(value_text(row["doc"])), value_text(row["operands"])]
            for row in rows
            if str(row["name"]).startswith(f"{family}.")
        ]
        parts += [f"## {family}", table(["operator", "what it computes", "operands"], found)]
    return "\n\n".join(parts)


def ops() -> str:
    """The ops of the IR, as `stackc ops --markdown` prints them."""
    return ops_page()


def passes() -> str:
    """Every pass with its options and their defaults."""
    parts = ["# Passes and their options", "In a pipeline: `--pass-pipeline='fuse{max_inputs=8}'`."]
    for row in inventory.passes():
        parts += [f"## {row['name']}", text_block(value_text(row["doc"]))]
        options = [[f"`{key}`", f"`{value_text(value)}`"] for key, value in row["options"].items()]
        parts += [table(["option", "default"], options)] if options else []
    return "\n\n".join(parts)


def stages() -> str:
    """The stages of each backend that lowers."""
    rows = inventory.stages()
    parts = ["# Stages of each backend", "A program passes through these stages, in this order."]
    for backend in dict.fromkeys(row["backend"] for row in rows):
        found = [[f"`{r['stage']}`", r["pipeline"]] for r in rows if r["backend"] == backend]
        parts += [f"## {backend}", table(["stage", "pass pipeline"], found)]
    return "\n\n".join(parts)


def targets() -> str:
    """The numbers of each machine, with unit and source."""
    parts = ["# Targets", "Passes decide by these numbers. `--target NAME` lowers for a machine."]
    for name in names():
        target = load(name)
        features = ", ".join(target.features) or "none"
        parts += [
            f"## {name}",
            f"{target.title}: {kind_of(target)}, arch `{target.arch}`, features {features}.",
            table(["number", "value", "unit", "meaning", "source"], rows_of(target)),
        ]
    return "\n\n".join(parts)


def signature(name: str, found: Any) -> str:
    """Returns the signature of a function or a class, with annotations as written, unquoted."""
    called = inspect.signature(found)
    shown = [p.replace(annotation=Written(p.annotation)) for p in called.parameters.values()]
    result = Written(called.return_annotation)
    return f"stack.{name}{called.replace(parameters=shown, return_annotation=result)}"


class Written:
    """An annotation that prints as its source text."""

    def __new__(cls, text: Any) -> Any:
        """Only for text: others print well."""
        return super().__new__(cls) if isinstance(text, str) else text

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def doc_of(member: Any) -> str:
    """The docstring of a method or property; "" for other members."""
    inner = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    inner = getattr(inner, "func", inner)  # a cached property
    return (inspect.getdoc(inner) or "") if inspect.isroutine(inner) else ""


def first_line(text: str) -> str:
    """The first line of a text."""
    return text.split("\n", 1)[0]


def text_block(text: str) -> str:
    """A fenced block without highlighting."""
    return f"```text\n{text.rstrip()}\n```"


def code_block(text: str) -> str:
    """A fenced block of Python."""
    return f"```python\n{text.rstrip()}\n```"


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table of Markdown."""
    lines = [list(heads)]
    lines += [["---"] * len(lines[0])]
    lines += [[cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """One cell: a line in which nothing ends the cell or begins HTML."""
    text = f"{value:.4g}" if isinstance(value, float) else value_text(value)
    for mark, safe in (("|", "\\|"), ("<", "&lt;"), ("\n", " ")):
        text = text.replace(mark, safe)
    return text


def main() -> int:
    """Write the pages into a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for path, text in pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        print(folder / path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
