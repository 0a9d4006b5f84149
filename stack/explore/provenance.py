"""Trace a source line to nodes of every stage and to kernels, and back, with reasons."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stack.errors import UsageError
from stack.explore.kernel_rows import kernel_of, loop_note
from stack.explore.saved_run import SavedRun
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.printer import print_node
from stack.run.decisions import Decisions

_LINE = re.compile(r"(?P<file>[^\s:]+\.\w+)(?::(?P<line>\d+))?")


@dataclass(frozen=True)
class NodeLocation:
    """One node of one stage. `path` are the names of the groups around it."""

    name: str
    text: str
    source: tuple[str, ...]
    path: tuple[str, ...] = ()


@dataclass
class QueryResult:
    """The nodes by stage, and the kernels by name, that match a query."""

    what: str
    source: tuple[str, ...]
    stages: dict[str, list[NodeLocation]] = field(default_factory=dict[str, list[NodeLocation]])
    kernels: list[str] = field(default_factory=list[str])


def places(func: Func) -> Iterator[NodeLocation]:
    """Yields all nodes of a function with their names and source lines, nested blocks included."""
    yield from _places(func.body, func.body, ())


def _places(block: Block, table: Block, path: tuple[str, ...]) -> Iterator[NodeLocation]:
    for node in block.nodes:
        name = _name(node, table)
        if name:
            yield NodeLocation(name, print_node(node, table), table.locs.get(node, ()), path)
        for inner in node.blocks:
            yield from _places(inner, table if inner.is_open else inner, (*path, name))


def _name(node: Node, table: Block) -> str:
    return table.names.get(node, "")


def matches(source: str, what: str) -> bool:
    """True if a source line such as "block.py:42 Attn.wq" matches a query.

    A module may be asked for as `Attn.wq`, `Attn/wq` or `wq`. `Attn` matches all modules in it too.
    """
    if source == what:
        return True
    place, _, module = source.partition(" ")
    path = what.replace("/", ".")
    if module and f".{path}." in f".{module}.":
        return True
    wanted = _LINE.fullmatch(what)
    if wanted is None:
        return False
    file, _, line = place.rpartition(":")
    same_file = file == wanted["file"] or file.endswith(f"/{wanted['file']}")
    return same_file and wanted["line"] in (None, line)


def where(run: SavedRun, what: str) -> QueryResult:
    """Finds nodes and kernels by source line, module path, node or kernel.

    A node or kernel is searched by its own name. In a stage without that name, the nodes that share
    its source lines are returned. Any other query is searched as a word in the user's code. Raises
    UsageError with the names in the run.
    """
    held = {name: tuple(places(run.func(name))) for name in run.stages if run.is_ir(name)}
    own = {str(k["stage_node"]) for k in run.kernels if k["name"] == what} or {what.lstrip("%")}
    named = [p for found in held.values() for p in found if p.name in own]
    lines = _lines_of(named) if named else _asked(run, held, what)
    found = QueryResult(what, tuple(lines))
    for stage, everything in held.items():
        hits = _outermost(p for p in everything if p.name in own) if named else []
        hits = hits or [p for p in everything if not set(p.source).isdisjoint(lines)]
        if hits:
            found.stages[stage] = hits
    mine = [k for k in run.kernels if k["name"] == what or k["stage_node"] in own]
    if not (named and mine):
        mine = [k for k in run.kernels if any(_same_line(s, lines) for s in k["source"])]
    found.kernels = [str(k["name"]) for k in mine]
    return found


def _outermost(found: Iterable[NodeLocation]) -> list[NodeLocation]:
    """Keeps only the found nodes that are nested in the fewest groups.

    The body of a group repeats the name of the group's value, so a name is found at several depths.
    """
    held = list(found)
    depth = min((len(place.path) for place in held), default=0)
    return [place for place in held if len(place.path) == depth]


def _same_line(source: str, lines: Iterable[str]) -> bool:
    place = source.split(" ")[0]
    return any(place == line.split(" ")[0] for line in lines)


def _lines_of(found: Iterable[NodeLocation]) -> list[str]:
    return list(dict.fromkeys(line for place in found for line in place.source))


def _asked(run: SavedRun, held: Mapping[str, Sequence[NodeLocation]], what: str) -> list[str]:
    """Returns the source lines of a run's nodes that match the query `what`.

    If none matches, returns those whose code contains `what` as a word. Raises UsageError, with a
    similar name, if there are none either.
    """
    everything = _lines_of(place for found in held.values() for place in found)
    hits = [line for line in everything if matches(line, what)]
    hits = hits or _spelled(run, everything, what)
    if not hits:
        files = sorted({line.split(" ")[0] for line in everything}, key=_by_number)
        kernels = list(dict.fromkeys(str(k["name"]) for k in run.kernels))
        names = {place.name for found in held.values() for place in found}
        near = difflib.get_close_matches(what.lstrip("%"), [*files, *kernels, *sorted(names)], 1)
        own = [line for line in files if _by_number(line)[0] == _by_number(what)[0]]
        if own:  # a line without an op: suggest the closest line, not a similar text
            near = [min(own, key=lambda line: abs(_by_number(line)[1] - _by_number(what)[1]))]
        raise UsageError(
            f"{run.folder} has no source line, module, node or kernel {what!r};"
            + (f" did you mean {near[0]!r}?" if near else "")
            + f" its source lines: {', '.join(files) or 'none'}"
            + (f"; its kernels: {', '.join(kernels)}" if kernels else "")
        )
    return hits


def _spelled(run: SavedRun, lines: Iterable[str], word: str) -> list[str]:
    """Returns those of `lines` (as `model.py:12`) whose code contains the identifier `word`.

    Returns [] if `word` is no identifier or dotted name.
    """
    if not all(part.isidentifier() for part in word.split(".")):
        return []
    is_there = re.compile(rf"\b{re.escape(word)}\b")
    code = {name: text.splitlines() for name, text in run.sources.items()}
    found: list[str] = []
    for line in lines:
        file, number = _by_number(line.split(" ")[0])
        if 0 < number <= len(code.get(file, ())) and is_there.search(code[file][number - 1]):
            found.append(line)
    return found


def _by_number(line: str) -> tuple[str, int]:
    """Splits `model.py:12` into file and line number; the number is -1 if the text has none."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, -1)


@dataclass(frozen=True)
class Reason:
    """A decision of one pass about the queried lines: a rewrite, a fusion, a refusal, or a note."""

    stage: str
    pass_name: str
    text: str


def explain(run: SavedRun, what: str) -> list[Reason]:
    """Returns what the passes of a run did to a line, from their recorded decisions, and which of
    its loops run from Python.

    No pass runs again, so neither the framework nor the model, its weights and plug-ins are needed.
    """
    found = where(run, what)
    lines = set(found.source)
    kernels = [kernel_of(k) for k in run.kernels if k["name"] in found.kernels]
    notes = [Reason("runtime", k.name, loop_note(k)) for k in kernels if k.loop_steps]
    return notes + [
        Reason(stage, record.name, text)
        for stage in run.stages
        for record in run.decisions(stage)
        for text in _told(record, lines)
    ]


def _told(record: Decisions, lines: set[str]) -> list[str]:
    def here(source: tuple[str, ...]) -> bool:
        return not lines.isdisjoint(source)

    counts: dict[str, int] = {}
    for rewrite in record.rewrites:
        if here(rewrite.source):
            counts[rewrite.rule] = counts.get(rewrite.rule, 0) + 1
    told = [f"rewrote by {rule} x{n}" for rule, n in counts.items()]
    told.extend(str(note) for note in record.remarks if here(note.source))
    for group in record.formed:
        if here(group.source):
            saved = f", {group.saved} bytes stay out of memory" if group.saved else ""
            told.append(f"formed {group.kind} group {group.name} of {len(group.ops)} ops{saved}")
    refused = {
        f"did not fuse {r.producer} with {r.consumer}: {r.reason}"
        for r in record.refused
        if here(r.source)
    }
    told.extend(sorted(refused))
    told.extend(
        f"{miss.rule} did not apply to {miss.node.split(' = ')[0]}: {miss.reason}"
        for miss in record.misses
        if here(miss.source)
    )
    return told
