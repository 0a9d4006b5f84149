"""Finds where nans or infinities first appear in a function: nodes that make them of other values.

The interpreter runs the function. For each value with such elements, a `Watch` keeps the nodes that
they come from. A value that one node passes to the next is recognized as the same array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stack.errors import RuleError, StackError
from stack.ir.builder import param
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.ops import footprint, lookup
from stack.ir.region import Region
from stack.ir.space import NumpySpace
from stack.ir.types import TupleType
from stack.rewrite.wide import widen, widen_dtype

Array = np.ndarray[Any, Any]
Test = Callable[[Any], Array]


@dataclass(frozen=True, eq=False)
class Source:
    """A node, or a parameter, with bad elements that no operand has. `args` are its operands'
    values, `infinite` the sources of their infinities.
    """

    node: Node
    value: Array
    bad: Array  # True for each bad element
    args: tuple[Array, ...] = ()
    infinite: tuple[Source, ...] = ()

    @property
    def index(self) -> tuple[int, ...]:
        """The first bad element."""
        return tuple(int(i) for i in np.argwhere(self.bad)[0])


@dataclass
class Watch:
    """The sources of bad values, which `is_bad` (`np.isnan` or `np.isinf`) recognizes."""

    is_bad: Test
    sources: list[Source] = field(default_factory=list[Source])
    known: dict[int, tuple[weakref.ref[Array], tuple[Source, ...]]] = field(
        default_factory=dict[int, tuple[weakref.ref[Array], tuple[Source, ...]]]
    )

    def bad(self, value: Any) -> Array:
        """Returns True for each bad element of an array; integers and bools have none."""
        array = np.asarray(value)
        return self.is_bad(array) if array.dtype.kind in "fc" else np.zeros(array.shape, np.bool_)

    def origins(self, value: Array) -> tuple[Source, ...]:
        """Returns the sources of a value's bad elements; all sources so far if it is a slice or a
        copy of a value, as the operand of a loop's body may be.
        """
        if not self.bad(value).any():
            return ()
        held, found = self.known.get(id(value), (None, ()))
        return found if held is not None and held() is value else tuple(self.sources)

    def see(
        self, node: Node, value: Array, args: Sequence[Array], infinite: Sequence[Source] = ()
    ) -> None:
        """Adds a node that was evaluated; `infinite` are sources of its operands' infinities."""
        bad = self.bad(value)
        if not bad.any():
            return
        held = self.known.get(id(value))
        if held is not None and held[0]() is value:  # a block passes a value on
            return
        found = tuple(dict.fromkeys(s for a in args for s in self.origins(a)))
        if node.blocks and not found:
            found = tuple(self.sources)
        fresh = bad
        if lookup(node.op).kind == "elementwise":
            for a in args:
                fresh = fresh & ~self.bad(a)
        elif found:
            fresh = np.zeros_like(bad)
        if fresh.any():
            made = Source(node, value, fresh, tuple(args), tuple(infinite))
            self.sources.append(made)
            found = (*found, made)
        self.known[id(value)] = weakref.ref(value), found


@dataclass(frozen=True)
class Findings:
    """The values of one run: the watches of nans and of infinities, and the results."""

    nans: Watch
    infs: Watch
    results: tuple[Array, ...]


def watched(func: Func, inputs: Sequence[Array]) -> Findings:
    """Interprets a function without size symbols, and watches all its values."""
    nans, infs = Watch(np.isnan), Watch(np.isinf)

    def observe(node: Node, value: Any, args: Sequence[Any]) -> None:
        if isinstance(node.type, TupleType) or node.op == "item":
            return  # their items are values of inner nodes, or results of one op
        value = np.asarray(value)
        infs.see(node, value, args)
        infinite = tuple(dict.fromkeys(s for a in args for s in infs.origins(a)))
        nans.see(node, value, args, infinite)

    for p, value in zip(func.params, inputs, strict=True):
        infs.see(p, value, ())
        nans.see(p, value, ())
    results = evaluate(func.body, inputs, NumpySpace(), observe)
    return Findings(nans, infs, results)


# ---- one source: which operands, and why


@dataclass(frozen=True)
class Operand:
    """The elements of one operand that one element of the result reads: a box, and its values."""

    index: str
    values: Array

    @property
    def has_inf(self) -> bool:
        """True if one of the values is infinite."""
        return self.values.dtype.kind in "fc" and bool(np.isinf(self.values).any())


def operands(source: Source) -> list[Operand]:
    """Returns what the first bad element of a source is computed from."""
    regions: list[Region | None]
    try:
        regions = footprint(source.node, source.index)
    except RuleError:  # its reads depend on data
        regions = [None] * len(source.args)
    found: list[Operand] = []
    for array, region in zip(source.args, regions, strict=True):
        box = None if region is None else tuple(slice(_int(r.start), _int(r.stop)) for r in region)
        values = np.asarray(array) if box is None else np.asarray(array)[box]
        spans = () if region is None else region
        found.append(Operand(f"[{', '.join(map(str, spans))}]", values))
    return found


def _int(dim: Dim) -> int:
    assert isinstance(dim, int)
    return max(dim, 0)


def reason(source: Source) -> str:
    """Explains in a few words why the first bad element is nan or infinite."""
    node = source.node
    if node.op == "param":
        return "an argument or a weight already has it"
    if node.op == "const":
        return "a constant of the program"
    if np.isnan(source.value[source.index]):
        return _why_nan(source)
    return _why_inf(source)


def _why_nan(source: Source) -> str:
    node, read = source.node, operands(source)
    if lookup(node.op).kind == "elementwise":
        return f"{node.op}({', '.join(scalar_text(o.values) for o in read)}) has no value"
    if any(operand.has_inf for operand in read):
        return f"{node.op} of infinities: inf - inf, or 0 * inf"
    return "partial results overflow to inf and -inf"


def _why_inf(source: Source) -> str:
    node, exact = source.node, wide_value(source)
    if any(operand.has_inf for operand in operands(source)):
        return "an operand is infinite"
    if lookup(node.op).kind == "elementwise":
        try:
            with np.errstate(divide="raise", over="ignore", invalid="ignore"):
                NumpySpace().elementwise(node, *source.args)
        except FloatingPointError:
            if exact is None or not np.isfinite(exact):
                return f"a division by zero, or a pole of {node.op}"
    largest = float(np.finfo(node.dtype.numpy).max)
    value = "" if exact is None or not np.isfinite(exact) else f"{exact:.3g} is more than "
    return f"overflow: {value}the largest {node.dtype}{' is' if not value else ','} {largest:.3g}"


def wide_value(source: Source) -> complex | float | None:
    """Returns the first bad element as computed in double precision from the same operands.

    Returns None if the op has no meaning in double precision.
    """
    node = source.node
    if node.blocks:
        return None
    params = [param(f"x{i}", a.type) for i, a in enumerate(node.args)]
    try:
        wide = widen(Func("f", Block(params, [node.rebuilt(params)])))
        types = [widen_dtype(p.dtype).numpy for p in params]
        args = [np.asarray(a).astype(t) for a, t in zip(source.args, types, strict=True)]
        (value,) = evaluate(wide.body, args, NumpySpace())
    except StackError:
        return None
    return value[source.index].item()


def scalar_text(values: Any) -> str:
    """Formats the only element of an array, to six digits."""
    scalar = np.asarray(values).reshape(-1)[0].item()
    return f"{scalar:.6g}" if isinstance(scalar, float | complex) else str(scalar).lower()
