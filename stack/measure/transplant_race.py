"""Time other compilers' fusion groups in our code, beside our groups and their own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stack.errors import StackError
from stack.explore.lowering import Settings, all_stages
from stack.explore.retrace import marked
from stack.explore.table import number, scaled, table
from stack.explore.terminal import Loud, filled
from stack.ir.node import walk
from stack.measure.compare import Comparison, measure, ratio_text
from stack.measure.systems import (
    BenchProgram,
    Say,
    System,
    first_line,
    graph_system,
    peer_systems,
)
from stack.measure.timing import ROUNDS
from stack.measure.transplants import Transplant, transplant
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Kernel
from stack.run.specs import BackendSpec

SCHEMA = "stack.transplant/1"
OURS, UNSTREAMED, ALONE = "ours", "ours, no streams", "each op alone"
ILLEGAL = 6  # split groups that are listed for each peer


@dataclass
class Donor:
    """The source of groups, by name: us, or a peer.

    `groups` is None for our own. `ours` and `own` are rows of the comparison: our code with these
    groups, and the peer's own code. `bytes` is the memory traffic of our kernels.
    """

    name: str
    groups: Transplant | None
    ours: dict[str, Any] | None = None
    own: dict[str, Any] | None = None
    bytes: float = 0.0
    note: str = ""


@dataclass
class Transplants:
    """All donors of one program, and the comparison that timed them."""

    comparison: Comparison
    donors: list[Donor] = field(default_factory=list[Donor])

    @property
    def exit_code(self) -> int:
        """As for `Comparison`."""
        return self.comparison.exit_code

    def as_dict(self) -> dict[str, Any]:
        """Returns the document of `--json`."""
        document = self.comparison.as_dict()
        rows: list[dict[str, Any]] = []
        for donor in self.donors:
            row: dict[str, Any] = {"groups_of": donor.name, "bytes": donor.bytes}
            row["our_code"] = donor.ours and f"{donor.ours['system']}/{donor.ours['via']}"
            row["its_own_code"] = donor.own and f"{donor.own['system']}/{donor.own['via']}"
            if donor.groups is not None:
                row["groups"], row["edit"] = donor.groups.groups, donor.groups.edit
                row["split"] = [vars(each) for each in donor.groups.split]
            rows.append({**row, "note": donor.note})
        return {**document, "schema": SCHEMA, "donors": rows}


def transplant_race(
    program: BenchProgram,
    peers: Sequence[BackendSpec],
    settings: Settings,
    *,
    rounds: int = ROUNDS,
    say: Say = lambda _: None,
) -> Transplants:
    """Compiles a function with our groups and with those of each peer, and times all together.

    Everything runs on equal arrays: our code is called as the peers' is, not as its users call it.
    """
    func, origins = marked(program.func)
    stages, machine = all_stages(func, settings)
    streams = any(each.name == "stream" for _, spec in stages for each in Pipeline(spec).passes)
    base = f"{settings.passes},-stream" if streams else settings.passes
    stages, machine = all_stages(func, replace(settings, passes=base))
    systems: list[System] = []

    def compiled(name: str, passes: str) -> System:
        say(f"compiling with our backend: groups of {name}")
        try:
            made = graph_system(program, settings.backend, passes, name, settings.options)
        except StackError as error:
            if name == OURS:
                raise
            made = System(name, "own", problem=first_line(error))
        made.label = name
        systems.append(made)
        return made

    ours: dict[str, System] = {OURS: compiled(OURS, settings.passes)}
    theirs: dict[str, System] = {}
    donors = [Donor(OURS, None)]
    if streams and _has_stream(ours[OURS]):
        ours[UNSTREAMED] = compiled(UNSTREAMED, base)
        donors.append(Donor(UNSTREAMED, None))

    def donate(name: str, kernels: Sequence[Kernel]) -> Donor:
        found = transplant(kernels, func, origins, stages, machine)
        ours[name] = compiled(name, f"{base},{found.edit}")
        return Donor(name, found, note=_note(found))

    for peer in peers:
        (made,) = peer_systems(program, peer, ("ir",), say)
        theirs[made.label] = made
        if made.runner is None:
            donors.append(Donor(made.label, None, note=made.problem))
        else:
            donors.append(donate(made.label, made.runner.kernels))
    donors.append(donate(ALONE, ()))
    comparison = measure(program, [*systems, *theirs.values()], rounds, say)
    rows = dict(zip(map(id, comparison.systems), comparison.rows, strict=True))
    for donor in donors:
        donor.ours = rows[id(ours[donor.name])] if donor.name in ours else None
        donor.own = rows[id(theirs[donor.name])] if donor.name in theirs else None
        runner = ours[donor.name].runner if donor.name in ours else None
        donor.bytes = sum(k.bytes for k in runner.kernels) if runner is not None else 0.0
    return Transplants(comparison, donors)


def _has_stream(system: System) -> bool:
    run = system.graph.run if system.graph is not None else None
    funcs = run.functions if run is not None else ()
    return any(node.op == "stream" for func in funcs for _, node in walk(func.body))


def _note(found: Transplant) -> str:
    if not found.inside:
        return ""
    return f"{found.inside} of its kernels are in loops, whose groups stay ours"


def transplant_table(found: Transplants) -> str:
    """Formats a row for each donor of groups: what was fused, and how well it was coded."""
    base = found.donors[0].ours
    rows: list[list[object]] = []
    for donor in found.donors:
        ours, own, groups = donor.ours, donor.own, donor.groups
        row = ours or {}
        error = row.get("max_error")
        rows.append(
            [
                donor.name,
                groups.groups if groups is not None and groups.groups else None,
                len(groups.split) if groups is not None and groups.groups else None,
                row.get("kernels"),
                scaled(donor.bytes, "B") if ours else None,
                _ratio(base, ours),
                _ratio(base, own),
                _ratio(ours, own),
                None if not row.get("run_ms") else number(row["run_ms"]),
                None if error is None else f"{error:.1e}",
                "-" if ours is None else "ok" if row["ok"] else Loud("NO"),
            ]
        )
    head = ["groups of", "groups", "split", "kernels", "bytes", "fused: our code", "its own code"]
    head += ["coded: own/our", "ms", "error", "ok"]
    return table(head, rows, drop=["ms", "error", "kernels", "bytes"])


def _ratio(base: Mapping[str, Any] | None, row: Mapping[str, Any] | None) -> str:
    if row is None or base is None:
        return "-"
    return ratio_text(dict(base), dict(row), is_race=False)


def described(found: Transplants) -> str:
    """Formats the table, how to read it, and the groups that are not legal for us."""
    parts = [filled(found.comparison.device), transplant_table(found), filled(LEGEND)]
    for donor in found.donors:
        split = donor.groups.split if donor.groups is not None else ()
        lines = [str(each) for each in split[:ILLEGAL]]
        lines += [f"and {len(split) - ILLEGAL} more (--json has all)"] if split[ILLEGAL:] else []
        lines += [donor.note] if donor.note else []
        for code, row in (("our code", donor.ours), ("its own code", donor.own)):
            lines += [f"{code}: {row['note']}"] if row and not row["ok"] and row["note"] else []
        if lines:
            title = f"groups of {donor.name} that our rules split:" if split else f"{donor.name}:"
            parts.append(filled("\n".join([title, *(f"  {line}" for line in lines)])))
    return "\n\n".join(parts)


LEGEND = (
    "fused: our code: the time of these groups in our code, relative to our own groups. its own"
    " code: the peer's own program, relative to the same. coded: the peer's code relative to ours,"
    " for equal groups. Times of one row are median and quartiles over interleaved rounds; noisy if"
    " these are more than 5 % apart. split: its groups that our rules do not allow as a whole."
)
