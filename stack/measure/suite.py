"""What a bench suite is made of: cases that name their programs as a person would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import UsageError


@dataclass(frozen=True)
class Case:
    """One line of a bench row.

    Attributes:
        row: "C1" and so on.
        case: what tells it from the other cases of its row; goes into the JSON as it is.
        spec: the program, as a target of the command line; `options` go to its factory.
        frontend: that our compiler and every replay get it from.
        native: further frontends, whose own compilers get it natively.
        peers: as `--with` spells them.
        ir_only: those of them that run our function alone, where their own way is the same.
        kind: "run" times calls, "cold" times compilation in a fresh process.
        quick: whether it is part of the short suite.
        inputs: as `-i` spells them.
        own: our backends, as `--backend` spells them; "": the one that is the default.
        skip: why it is not run; its row says so.
        threads: how many torch is given, which ours follow; 0: as it is.
        work: the share of its contractions that a mask leaves, which is all that the floor counts.
        second: options of another program of the factory, compiled first in a "cold" case.
    """

    row: str
    case: dict[str, Any]
    spec: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    frontend: str | None = None
    native: tuple[str, ...] = ()
    peers: str = ""
    ir_only: tuple[str, ...] = ()
    kind: str = "run"
    quick: bool = False
    threads: int = 0
    work: float = 1.0
    second: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    own: str = ""
    skip: str = ""

    @property
    def title(self) -> str:
        """`gpt2 seq=128 f32`."""
        return " ".join(f"{k}={v}" if isinstance(v, int) else str(v) for k, v in self.case.items())


def select(
    cases: Sequence[Case], rows: str | None, only: Sequence[str] = (), quick: bool = False
) -> list[Case]:
    """The cases of some rows, and of those the ones that `only` allows (`seq=128`, `seq=128,512`).

    Raises UsageError with what there is where nothing is left.
    """
    known = list(dict.fromkeys(c.row for c in cases))
    wanted = [r.strip() for r in rows.split(",")] if rows else known
    for row in wanted:
        if row not in known:
            raise UsageError(f"no row {row!r} in this suite; there are: {', '.join(known)}")
    chosen = [c for c in cases if c.row in wanted and (c.quick or not quick)]
    for condition in only:
        key, equals, value = condition.partition("=")
        if not equals:
            raise UsageError(f"--only takes key=value, such as seq=128; found {condition!r}")
        keys = sorted({k for c in chosen for k in c.case})
        if key not in keys:
            raise UsageError(f"no case has {key!r}; they have: {', '.join(keys)}")
        values = value.split(",")
        chosen = [c for c in chosen if str(c.case.get(key, value)) in (value, *values)]
    if not chosen:
        raise UsageError("no case is left; leave out --only, --rows or --quick")
    return chosen
