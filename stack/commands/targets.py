"""`stackc targets`: descriptions of machines."""

from __future__ import annotations

import argparse
from dataclasses import Field
from typing import Any, NamedTuple

from stack.commands import common
from stack.explore.table import table
from stack.target import Target, load, names
from stack.target.files import REFERENCE, groups_of, numbers_of
from stack.target.record import kind_of

SCHEMA = "stack.targets/1"
TARGETS = f"""
    List the machines that programs can be lowered for, and the numbers that describe each.

    Passes know nothing else about a machine. These numbers decide tile sizes, if a reduction is
    split, and if a streamed reduction is cheaper than separate kernels. So one program gets
    different schedules for different targets. The machine itself need not be present:

      stackc dump model.py:net -i 'f32[8,128]' --backend triton --target sm_80
      stackc dump model.py:net -i 'f32[8,128]' --target avx2

    NAME, or a file, prints one target in full: each number with its unit, its meaning and its
    source (a datasheet, a measurement, or a choice and its reason). Numbers with a dot, as
    rows.tile, were tuned by measurements; a file may set them in a table, as [tuning.rows].

    Without --target, a program is lowered for this machine; a bare pipeline, as of `stackc opt`,
    for {" or ".join(REFERENCE.values())}. A GPU without its own file, as sm_86, uses that of the
    newest GPU before it.

    examples:
      stackc targets
      stackc targets sm_90
      stackc targets avx512 --json
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of the subcommand."""
    parser = common.command(subparsers, "targets", run_targets, "machines to compile for", TARGETS)
    parser.add_argument(
        "name", nargs="?", metavar="NAME|FILE", help="show only this target, in full"
    )
    common.add_wide(parser)
    common.add_json(parser, SCHEMA)


def run_targets(args: argparse.Namespace) -> int:
    """Prints all targets, or one."""
    found = [load(args.name)] if args.name else [load(name) for name in names()]
    if args.json:
        common.print_json({"schema": SCHEMA, "targets": [as_dict(t) for t in found]})
    elif args.name:
        (one,) = found
        features = ", ".join(one.features) or "none"
        print(f"{one.name}: {one.title}\n{kind_of(one)}, arch {one.arch}, features {features}\n")
        head = ["number", "value", "unit", "what", "where from"]
        print(table(head, rows_of(one), drop=["where from"], wrap=["what", "where from"]))
    else:
        rows = [[t.name, kind_of(t), t.arch, t.title] for t in found]
        print(table(["name", "kind", "arch", "machine"], rows))
    return 0


class Number(NamedTuple):
    """One number in a target machine's description, with its unit, meaning and source."""

    value: float
    unit: str
    meaning: str
    source: str


def rows_of(target: Target) -> list[list[Any]]:
    """Returns the numbers of a target machine as table rows, tile sizes and thresholds last."""
    return [
        [key, shown(found.value), found.unit, found.meaning, found.source]
        for key, found in {**_numbers(target), **_tuning(target)}.items()
    ]


def _numbers(target: Target) -> dict[str, Number]:
    return {
        key: _number(spec, getattr(target, key), target.sources.get(key, ""))
        for key, spec in numbers_of(type(target)).items()
    }


def _tuning(target: Target) -> dict[str, Number]:
    """Maps names such as `rows.tile` to the tile sizes and thresholds of a target machine."""
    found: dict[str, Number] = {}
    for group, usual in groups_of(type(target)).items():
        for key, spec in numbers_of(type(usual)).items():
            path, value = f"{group}.{key}", getattr(getattr(target, group), key)
            source = spec.metadata["source"] if value == getattr(usual, key) else ""
            found[path] = _number(spec, value, target.sources.get(path, source))
    return found


def _number(spec: Field[Any], value: float, source: str) -> Number:
    return Number(value, spec.metadata["unit"], spec.metadata["doc"], source)


def shown(value: float) -> str:
    """Formats a number for a target file: integers exactly, others with 4 digits."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def as_dict(target: Target) -> dict[str, Any]:
    """Returns a target as a dictionary for JSON."""
    words = {key: getattr(target, key) for key in ("name", "title", "arch")}
    kind = {"kind": kind_of(target), "features": target.features}
    tables = {"numbers": _numbers(target), "tuning": _tuning(target)}
    told = {
        name: {k: {"value": n.value, "unit": n.unit, "source": n.source} for k, n in found.items()}
        for name, found in tables.items()
    }
    return {**words, **kind, **told}
