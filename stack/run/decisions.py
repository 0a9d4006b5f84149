"""The decisions of the passes of a run: rewrites, near matches, groups, refusals and notes.

`stackc explain` reads decisions and runs no pass: a pass may have used weights, plug-ins, measured
times or a machine that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from stack.rewrite.log import FormedGroup, Miss, Note, RefusedFusion, Rewrite

SCHEMA = "stack.decisions/1"
FILE = "decisions.json"


@dataclass(frozen=True)
class Decisions:
    """The decisions of one pass. `name` is the pass with its options; `idle` is why it was skipped,
    "" if it ran.
    """

    name: str
    rewrites: tuple[Rewrite, ...] = ()
    misses: tuple[Miss, ...] = ()
    formed: tuple[FormedGroup, ...] = ()
    refused: tuple[RefusedFusion, ...] = ()
    remarks: tuple[Note, ...] = ()
    idle: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The entry of the file; empty lists are left out."""
        return {name: held for name, held in asdict(self).items() if held}


_KINDS: dict[str, type[Any]] = {
    "rewrites": Rewrite,
    "misses": Miss,
    "formed": FormedGroup,
    "refused": RefusedFusion,
    "remarks": Note,
}


def read(entries: Sequence[Mapping[str, Any]]) -> list[Decisions]:
    """Reads the decisions of one stage from its entries in the file."""
    found: list[Decisions] = []
    for entry in entries:
        held = {
            name: tuple(_entry(kind, each) for each in entry.get(name, ()))
            for name, kind in _KINDS.items()
        }
        found.append(Decisions(str(entry["name"]), **held, idle=str(entry.get("idle", ""))))
    return found


def _entry(kind: type[Any], held: Mapping[str, Any]) -> Any:
    values = {f.name: _frozen(held[f.name]) for f in fields(kind) if f.name in held}
    return kind(**values)


def _frozen(value: Any) -> Any:
    """Converts lists, also nested ones, to the tuples that they were before they were saved as
    JSON.
    """
    if isinstance(value, list):
        return tuple(_frozen(each) for each in cast("list[Any]", value))
    return value
