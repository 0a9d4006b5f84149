"""The memory of a run at its peak, by source line: which values are alive at that step, and where.

Computed from the last stage of IR, whose nodes execute in order. A value is alive from the step
that writes it to its last reader, a result to the end of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stack.errors import UsageError
from stack.explore.provenance import places
from stack.explore.saved_run import SavedRun
from stack.explore.table import scaled, table
from stack.explore.terminal import filled
from stack.ir.func import Func
from stack.ir.memory import one_before, reused
from stack.ir.node import Block, Node
from stack.ir.traits import is_alias, is_control, is_group, is_input, is_item, is_known, maker
from stack.ir.types import TensorType
from stack.run.backend import module_paths, source_lines

_Key = tuple[Node, int]  # a node and the number of one of its results


@dataclass(frozen=True)
class LiveValue:
    """A value in memory. `lines` are source lines with module paths, such as `block.py:42 wq`."""

    name: str
    type: str
    bytes: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MemoryPeak:
    """The step of a program at which most memory is in use; it prints as a table.

    Attributes:
        step: the number of the step, from 0, among `steps`.
        name: the value that the step computes.
        values: intermediates and results that are alive at this step, the largest first.
        arguments: bytes of arguments and weights.
        constants: bytes of constants.
        arena: bytes of the allocation that intermediates share; 0 if there is none.
    """

    step: int
    steps: int
    name: str
    values: tuple[LiveValue, ...]
    arguments: int
    constants: int
    arena: int

    @property
    def bytes(self) -> int:
        """The bytes of intermediates and results at the peak."""
        return sum(v.bytes for v in self.values)

    def by_line(self) -> dict[tuple[str, ...], list[LiveValue]]:
        """Returns the values by the source lines that they are from, the most bytes first."""
        found: dict[tuple[str, ...], list[LiveValue]] = {}
        for value in self.values:
            found.setdefault(value.lines, []).append(value)
        return dict(sorted(found.items(), key=lambda item: -sum(v.bytes for v in item[1])))

    def __str__(self) -> str:
        if not self.values:
            return "no step of the program allocates memory"
        head = (
            f"peak memory: {scaled(self.bytes, 'B')} of intermediates and results, at step"
            f" {self.step + 1} of {self.steps}, which computes %{self.name}; besides"
            f" {scaled(self.arguments, 'B')} of arguments and weights"
        )
        head += f" and {scaled(self.constants, 'B')} of constants" if self.constants else ""
        head += f"; intermediates share {scaled(self.arena, 'B')}" if self.arena else ""
        rows: list[list[object]] = []
        for lines, values in self.by_line().items():
            size = sum(v.bytes for v in values)
            share = f"{100 * size / max(1, self.bytes):.0f} %"
            source = ", ".join(source_lines(lines)) or "no source line"
            named = ", ".join(f"%{v.name} {v.type}" for v in values)
            rows.append([source, ", ".join(module_paths(lines)), scaled(size, "B"), share, named])
        head_row = ["source", "module", "live", "share", "values"]
        is_bare = not any(row[1] for row in rows)
        if is_bare:
            head_row.remove("module")
            rows = [[row[0], *row[2:]] for row in rows]
        return f"{filled(head)}\n\n{table(head_row, rows)}"


def memory_peak(run: SavedRun) -> MemoryPeak:
    """Returns the peak of a run's memory.

    Raises UsageError if the run has no kernels in its last stage, as one of another compiler, which
    plans memory itself.
    """
    stages = [s for s in run.stages if run.is_ir(s)]
    func = run.func(stages[-1]) if stages else None
    if func is None or not (any(map(is_group, func.nodes)) and run.kernels):
        raise UsageError(f"{run.folder} has no stage with kernels: its memory is planned elsewhere")
    if func.symbols:
        raise UsageError("its sizes are symbolic: run it once, or compile it for fixed sizes")
    imported = {p.name: p.source for s in stages[:2] for p in places(run.func(s))}
    return peak_of(func, imported)


def peak_of(func: Func, lines: Mapping[str, tuple[str, ...]]) -> MemoryPeak:
    """Returns the peak of a lowered function; `lines` are source lines of values by their name.

    A value whose name is not in `lines` gets those of its kernel.
    """
    block = _LiveRanges(func.body, lines)
    step, values = block.peak()
    arguments = sum(_size(p.tensor) for p in func.params)
    constants = sum(_size(n.tensor) for n in func.nodes if is_known(n))
    steps = block.steps
    name = block.name(steps[step]) if steps else ""
    ordered = tuple(sorted(values, key=lambda v: -v.bytes))
    return MemoryPeak(step, len(steps), name, ordered, arguments, constants, block.arena())


class _LiveRanges:
    """The live ranges of the values of one block, whose steps run one after the other."""

    def __init__(self, block: Block, lines: Mapping[str, tuple[str, ...]]) -> None:
        self.block, self.lines = block, lines
        self.steps = [n for n in block.nodes if _is_step(n)]
        self.owner: dict[Node, list[_Key]] = {}
        self.first: dict[_Key, int] = {}
        self.last: dict[_Key, int] = {}
        step = -1
        for node in block.nodes:
            step += _is_step(node)
            for arg in node.args:
                self.last.update(dict.fromkeys(self.owner.get(arg, ()), step))
            self._add(node, step)
        for result in block.results:
            self.last.update(dict.fromkeys(self.owner.get(result, ()), len(self.steps)))

    def _add(self, node: Node, step: int) -> None:
        source = one_before(node)
        if source is not None:
            self.owner[node] = self.owner.get(source, [])
        elif is_item(node):
            self.owner[node] = self.owner.get(maker(node), [])[int(node.attrs["index"]) :][:1]
        elif _is_step(node):
            self.owner[node] = [(node, i) for i in range(len(node.types))]
            own = [key for key in self.owner[node] if key[1] not in reused(node)]
            self.first.update(dict.fromkeys(own, step))
            self.last.update(dict.fromkeys(own, step))

    def name(self, node: Node) -> str:
        """Returns the name of a node in its block."""
        return self.block.names.get(node, node.op)

    def alive(self, step: int) -> Iterator[LiveValue]:
        """Yields the values that are alive while a step runs."""
        items = {(n.args[0], int(n.attrs["index"])): n for n in self.block.nodes if is_item(n)}
        for key, first in self.first.items():
            if first <= step <= self.last[key]:
                named = items.get(key, key[0])
                name, type_ = self.name(named), key[0].types[key[1]]
                held = self.block.locs
                lines = self.lines.get(name) or held.get(named) or held.get(key[0], ())
                yield LiveValue(name, str(type_), _size(type_), tuple(lines))

    def peak(self) -> tuple[int, list[LiveValue]]:
        """Returns the step with the most bytes, and its values; those in the loops and branches
        that it runs too.
        """
        found: list[list[LiveValue]] = []
        for number, node in enumerate(self.steps):
            inner = [_LiveRanges(b, self.lines).peak()[1] for b in node.blocks if is_control(node)]
            most = max(inner, key=_total, default=list[LiveValue]())
            found.append([*self.alive(number), *most])
        if not found:
            return 0, []
        step = max(range(len(found)), key=lambda i: _total(found[i]))
        return step, found[step]

    def arena(self) -> int:
        """Returns the size of the allocation that intermediates of the block share."""
        ends = [
            int(at) + _size(type_)
            for node in self.steps
            for at, type_ in zip(node.attrs.get("at") or (), node.types, strict=False)
            if int(at) >= 0
        ]
        return max(ends, default=0)


def _is_step(node: Node) -> bool:
    return not (is_alias(node) or is_item(node) or is_known(node) or is_input(node))


def _total(values: Sequence[LiveValue]) -> int:
    return sum(v.bytes for v in values)


def _size(type_: TensorType) -> int:
    size = type_.bytes
    assert isinstance(size, int), f"{type_} has a symbolic size"
    return size
