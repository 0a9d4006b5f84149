"""The values of a program with all its blocks, and the constraints between their shardings.

A block occurs in a program as often as nodes run it. So a value is a node with the path of nodes
that lead to its block. A value may be resharded at the border of a block. A carried value of a loop
has the same sharding in all iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

from stack.errors import RuleError
from stack.ir import ops, param
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline
from stack.ir.traits import is_input, is_item, is_operator, maker, place_of, runs_blocks
from stack.ir.types import TensorType
from stack.mesh.meshes import Axes, Mesh, joined
from stack.mesh.sharding import OPEN, DimSharding, Sharding, sharded
from stack.passes.sharding.agreement import Agreement
from stack.passes.sharding.factors import Factors, factors_of

Path = tuple[tuple[Node, int], ...]  # nodes that run blocks, each with the number of its block


class CellValue(NamedTuple):
    """A result of a node, in one occurrence of its block."""

    path: Path
    node: Node
    result: int = 0

    @property
    def type(self) -> TensorType:
        return self.node.types[self.result]


_CODES: dict[tuple[Axes, ...], int] = {}


@dataclass
class Cell:
    """The sharding of an equivalence class of values, as far as it is known.

    Attributes:
        value: one of the values, for messages.
        shape: the shape of all of them.
        axes: for each dim, the axes that split it.
        asked: for each dim, the sharding that the user gave.
        banned: axes that must not split it.
        said: True if the user gave a sharding.
        start: `axes` before propagation.
        ties: numbers of the ties that contain it.
        code: a number for `axes`.
    """

    value: CellValue
    shape: tuple[int, ...]
    axes: tuple[Axes, ...]
    asked: tuple[DimSharding, ...]
    banned: Axes = ()
    said: bool = False
    start: tuple[Axes, ...] = ()
    ties: list[int] = field(default_factory=list[int])
    code: int = 0

    def __post_init__(self) -> None:
        self.lie(self.axes)

    @property
    def used(self) -> Axes:
        """Returns the mesh axes that split any dim of the values."""
        return tuple(axis for axes in self.axes for axis in axes)

    @cached_property
    def bytes(self) -> int:
        """Returns the bytes of the whole value."""
        return int(cast("int", self.value.type.bytes))

    def split(self, dim: int, axes: Axes) -> None:
        """Replaces the mesh axes that split a dim by `axes`, which are more than before."""
        self.lie((*self.axes[:dim], joined(axes), *self.axes[dim + 1 :]))

    def lie(self, axes: tuple[Axes, ...]) -> None:
        """Sets the mesh axes that split each dim, and `code`, the number of this combination of
        axes."""
        self.axes, self.code = axes, _CODES.setdefault(axes, len(_CODES))

    @cached_property
    def waits(self) -> bool:
        """True if the user gave some dim a priority: the dim is propagated in a later round than
        dims of priority 0."""
        return any(dim.priority for dim in self.asked)

    def sharding(self, mesh: Mesh) -> Sharding:
        """Returns the sharding found so far."""
        return sharded(mesh, self.axes)


class CellTie(NamedTuple):
    """Values whose shardings imply each other: those of a node, or two sides of a border."""

    node: Node
    path: Path
    factors: Factors
    cells: tuple[Cell, ...]  # operands, then results
    values: tuple[CellValue, ...]
    level: int  # the round that asks it first: movement before computation
    sizes: tuple[int, ...]  # bytes of the values
    found: dict[tuple[bool, tuple[int, ...]], Agreement]  # by cell codes; for equal ties


class CellGraph:
    """All values of a function, their cells, and the ties between them.

    `balance`: operations that a rank does in the time of sending one byte.
    """

    def __init__(self, func: Func, mesh: Mesh, balance: float) -> None:
        self.func, self.mesh, self.balance = func, mesh, balance
        self.parents: dict[CellValue, CellValue] = {}
        self.cells: dict[CellValue, Cell] = {}
        self.ties: list[CellTie] = []
        self.borders: list[tuple[CellValue, CellValue]] = []
        self.blocks: dict[Path, Block] = {}
        self.found: dict[
            tuple[Factors, tuple[int, ...]], dict[tuple[bool, tuple[int, ...]], Agreement]
        ] = {}
        self._enter(func.body, ())
        self._tie()

    @cached_property
    def waits(self) -> bool:
        """True if the user gave priorities."""
        return any(cell.waits for cell in self.cells.values())

    def reset(self) -> None:
        """Sets every cell to its sharding from before propagation."""
        for cell in self.cells.values():
            if cell.axes is not cell.start:
                cell.lie(cell.start)

    def cell(self, value: CellValue) -> Cell:
        """Returns the cell of a value."""
        return self.cells[self._root(value)]

    def block(self, path: Path) -> Block:
        """Returns the block at a path, which is the nodes that lead to it."""
        return self.blocks[path]

    def name(self, value: CellValue) -> str:
        """Returns the name of a value in the program text."""
        node, block = value.node, self.blocks[value.path]
        if is_input(node):
            return f"%{node.attrs['name']}"
        tail = f"#{value.result}" if len(node.types) > 1 else ""
        return f"%{block.names.get(node, node.op)}{tail}"

    def lines(self, value: CellValue) -> tuple[str, ...]:
        """The source lines of a value."""
        return self.blocks[value.path].locs.get(value.node, ())

    # ---- values and borders

    def _enter(self, block: Block, path: Path) -> None:
        self.blocks[path] = block
        for node in (*block.params, *block.nodes):
            if is_operator(node):
                continue
            for number, inner in enumerate(node.blocks):
                self._enter(inner, (*path, (node, number)))
            if is_item(node):
                self._join(CellValue(path, node), CellValue(path, maker(node), place_of(node)))
            elif node.blocks:
                self._borders(node, path)

    def _borders(self, node: Node, path: Path) -> None:
        args = [CellValue(path, a) for a in node.args[node.op == "cond" :]]
        made = [CellValue(path, node, i) for i in range(len(node.types))]
        for number, block in enumerate(node.blocks):
            inner: Path = (*path, (node, number))
            params = [CellValue(inner, p) for p in block.params]
            if node.op == "while":
                for result, param in zip(made, params, strict=True):
                    self._join(result, param)
            first = [CellValue((*path, (node, 0)), p) for p in node.blocks[0].params]
            for param, same in zip(params, first, strict=True):
                self._join(same, param)  # of all branches
            if number == 0:
                self.borders.extend(zip(args, params, strict=True))
            if node.op != "while" or number == 1:
                found = [CellValue(inner, r) for r in block.results]
                self.borders.extend(zip(found, made, strict=True))

    def _join(self, first: CellValue, second: CellValue) -> None:
        a, b = self._root(first), self._root(second)
        if a != b:
            self.parents[b] = a

    def _root(self, value: CellValue) -> CellValue:
        while value in self.parents:
            value = self.parents[value]
        return value

    # ---- cells and ties

    def values(self) -> Iterator[CellValue]:
        """Yields every result of every node, in every occurrence of its block."""
        for path, block in self.blocks.items():
            for node in (*block.params, *block.nodes):
                yield from (CellValue(path, node, i) for i in range(len(node.types)))

    def _tie(self) -> None:
        for value in self.values():
            self._said(value)
        for path, block in self.blocks.items():
            for node in block.nodes:
                computes = is_operator(node) or not (runs_blocks(node) or is_item(node))
                if computes and not is_inline(node):
                    values = [CellValue(path, a) for a in node.args]
                    values += [CellValue(path, node, i) for i in range(len(node.types))]
                    moves = ops.lookup(node.op).kind in ("elementwise", "movement", "collective")
                    self._add(node, path, factors_of(node), values, 0 if moves else 1)
        for first, second in self.borders:
            self._add(second.node, second.path, _copied(second.type), [first, second], 0)

    def _add(
        self, node: Node, path: Path, factors: Factors, values: list[CellValue], level: int
    ) -> None:
        cells = tuple(self.cell(value) for value in values)
        sizes = tuple(cell.bytes for cell in cells)
        for cell in {id(cell): cell for cell in cells}.values():
            cell.ties.append(len(self.ties))
        found = self.found.setdefault((factors, sizes), {})
        self.ties.append(CellTie(node, path, factors, cells, tuple(values), level, sizes, found))

    def _said(self, value: CellValue) -> None:
        """Finds or creates the cell of a value, and sets the sharding with which the program
        annotates it, if any. Raises RuleError if that is on another mesh, or differs from the
        annotation of another value of the cell."""
        shape = tuple(int(cast("int", n)) for n in value.type.shape)
        root, said = self._root(value), value.type.sharding
        cell = self.cells.get(root)
        if cell is None:
            open_ = (OPEN,) * len(shape)
            none = ((),) * len(shape)
            cell = self.cells[root] = Cell(value, shape, none, open_, start=none)
        if said is None:
            return
        if said.mesh != self.mesh:
            raise RuleError(f"{self.name(value)} is on mesh {said.mesh}, not on {self.mesh}")
        if cell.said and (cell.axes, cell.asked) != (said.axes, said.dims):
            raise RuleError(
                f"{self.name(cell.value)} and {self.name(value)} are one value of a loop, and are"
                f" annotated {cell.value.type} and {value.type}: choose one"
            )
        cell.value, cell.said = value, True
        cell.start = said.axes
        cell.lie(said.axes)
        cell.asked, cell.banned = said.dims, said.replicated


def _copied(type_: TensorType) -> Factors:
    """Returns the factors of an op that copies its operand: one for each dim, shared by operand and
    result."""
    return factors_of(Node("reshard", (param("x", type_),), {}, type_))
