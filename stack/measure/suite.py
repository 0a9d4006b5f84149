"""Cases of a bench suite; programs are named as on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import UsageError


@dataclass(frozen=True)
class Case:
    """One line of a bench row.

    Attributes:
        row: "C1" and so on.
        case: distinguishes it from other cases of its row; copied to the JSON.
        spec: the program, as a target of the command line; `options` go to its factory.
        frontend: used by our compiler and by every replay.
        native: further frontends, whose own compilers get the program natively.
        peers: as `--with` spells them.
        ir_only: peers that only replay our function, since running it natively is the same.
        kind: "run" times calls, "cold" times compilation in a fresh process.
        quick: True if it is part of the short suite.
        inputs: as `-i` spells them.
        own: our backends, as `--backend` spells them; "" for the default.
        skip: the reason why it is not run, shown in its row.
        threads: number of threads for torch and our kernels; 0 changes nothing.
        work: share of its contractions that a mask keeps; the floor counts only that.
        second: options of a second program of the factory, compiled after the first in a "cold"
            case.
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
        """Returns a title such as `gpt2 seq=128 f32`."""
        return title_of(self.case)


def title_of(case: Mapping[str, Any]) -> str:
    """Returns the title of a case: `rows=1 depth=768 f32`."""
    return " ".join(f"{k}={v}" if isinstance(v, int) else str(v) for k, v in case.items())


def select(
    cases: Sequence[Case], rows: str | None, only: Sequence[str] = (), quick: bool = False
) -> list[Case]:
    """Selects the cases of some rows that match all conditions of `only` (`seq=128`,
    `seq=128,512`).

    Raises UsageError with the known values if no case is left.
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
