"""emit: a fusion group or a stream becomes its plain loop nest.

One serial loop for each axis, scalars inside. Results that share the axes of the group share its
loops: kept axes outside, then one loop along what is reduced for the results that have it. A
reduction is a loop of its own that carries the total. Nothing of it depends on a target, and it is
ordinary IR: it prints, parses, and the interpreter runs it.

    y[i, r] = x[i, r] / sum over r of x[i, r]

    loop(%o0) {(%i < 4, %o0_1)
      %acc = loop(0.0) {(%r < 5, %acc1)  add(%acc1, load(%p0, %i, %r)) }
      loop(%o0_1) {(%r < 5, %o0_2)  store(%o0_2, div(load(%p0, %i, %r), %acc), %i, %r) }
    }

Source: the algorithm without a schedule of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from stack.ir.axes import Index
from stack.ir.builder import param
from stack.ir.dim import Dim, Expr, substitute, symbol, symbols
from stack.ir.integers import INT32
from stack.ir.node import Block, Node
from stack.ir.streaming import expanded
from stack.ir.traits import (
    arrays_of,
    is_contraction,
    is_reduction,
    is_running,
    is_stream,
    mixes,
    op_names,
)
from stack.ir.types import I32, I64, DType, TensorType
from stack.passes.nest.scope import Scope, letter
from stack.passes.nest.values import Scalars
from stack.passes.nest.walks import scan_nest, scatter_nest
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.frame import CannotTile, static


def emit(
    group: Node,
    integer: DType | None = None,
    root: Node | None = None,
    reduced: Collection[int] | None = None,
) -> Node:
    """The kernel that computes a group by its plain loop nest.

    Args:
        group: a `fusion` or a `stream`, of known sizes.
        integer: the type of indices; by default 32 bits where no array needs more.
        root: the node whose axes span the group; by default that of `domain`.
        reduced: axes of the root whose loops stand inside, around what is reduced along them; by
            default those along which the root itself is reduced.

    Raises:
        CannotTile: an op has no loop nest, or a size is not known.
    """
    return _Nest(group, integer, root, reduced).kernel()


def domain(body: Block, root: Node | None = None) -> tuple[Node, Index, dict[Node, Index]] | None:
    """The node whose axes span a group, a symbol for each axis, and where values sit.

    None where the results do not share one space. `root`: the node, where it is chosen.
    """
    if root is not None:
        return _domain(body, root)
    spanning = [n for n in body.nodes if is_contraction(n)]
    spanning = spanning or [n.args[0] for n in body.nodes if _reduces(n)] or list(body.results)
    most = max(static(n.tensor.size) for n in spanning)
    roots = dict.fromkeys(n for n in spanning if static(n.tensor.size) == most)
    return next(filter(None, (_domain(body, root) for root in roots)), None)


def _domain(body: Block, root: Node) -> tuple[Node, Index, dict[Node, Index]] | None:
    axes = tuple(symbol(f"d{i}", 0, max(static(s) - 1, 0)) for i, s in enumerate(root.shape))
    try:
        places = index_maps_of(body, root, axes)
    except CannotTile:
        return None
    for result in body.results:
        if result.shape == root.shape:
            places.setdefault(result, axes)  # it holds rows spread over another axis
    return (root, axes, places) if all(r in places for r in body.results) else None


def axis_names(root: Node, reduced: Collection[int]) -> list[str]:
    """What the loops along the axes of a group's space are called; "" for axes of one place."""
    names: list[str] = []
    for axis, extent in enumerate(root.shape):
        count = sum(n.startswith("r") for n in names)
        own = (f"r_{count}" if count else "r") if axis in reduced else letter(axis)
        names.append(own if static(extent) > 1 else "")
    return names


def _reduces(node: Node) -> bool:
    return is_reduction(node) and bool(node.attrs["axes"])


class _Nest:
    """One kernel that is being made."""

    def __init__(
        self,
        group: Node,
        integer: DType | None,
        root: Node | None,
        reduced: Collection[int] | None,
    ) -> None:
        self.group, self.root, self.reduced = group, root, reduced
        own = group.blocks[0]
        self.body = Block(own.params, expanded(group).results) if is_stream(group) else own
        nodes = (*self.body.params, *self.body.nodes)
        sizes = [static(t.size) for n in nodes for t in n.types]
        if 0 in sizes:
            raise CannotTile("an array in it is empty")
        if any(t.dtype.kind == "c" for n in nodes for t in n.types):
            raise CannotTile("it computes with complex numbers")
        self.arrays = arrays_of(self.body)
        inputs = (*self.body.params, *self.arrays)
        memory = {p: _memory(f"p{i}", p.tensor) for i, p in enumerate(inputs)}
        usual = I64 if any(size > INT32[1] for size in sizes) else I32
        self.scope = Scope(integer or usual, (str(m.attrs["name"]) for m in memory.values()))
        self.values = Scalars(self.scope, memory, own.names, own.locs)
        self.outputs = [_memory(f"o{i}", r.tensor) for i, r in enumerate(self.body.results)]
        for output in self.outputs:
            self.scope.fresh.own(str(output.attrs["name"]))

    def kernel(self) -> Node:
        """The kernel node."""
        (first, *_) = self.body.results
        if len(self.body.results) == 1 and mixes(first):
            walk = scan_nest if is_running(first) else scatter_nest
            return self._built([walk(self.values, first, self.outputs[0], self._along)])
        final: dict[Node, Node] = {o: o for o in self.outputs}
        for kept, inner, stored in self._spaces():
            names = [o for o, _, _ in stored]
            final.update(zip(names, self._stores(kept, inner, stored), strict=True))
        return self._built([final[o] for o in self.outputs])

    def _built(self, final: Sequence[Node]) -> Node:
        """The kernel node, from its outputs after the last store."""
        params = [*self.values.memory.values(), *self.outputs]
        block = self.scope.b.block(params, final)
        attrs: dict[str, object] = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "tile",
            "ops": op_names(self.group.blocks[0].nodes),
        }
        return Node("kernel", [*self.group.args, *self.arrays], attrs, self.group.type, (block,))

    def _spaces(self) -> list[tuple[list[Dim], list[Dim], list[tuple[Node, Node, Index]]]]:
        """Loop spaces: axes that all results have, axes that some have, results and places."""
        results = list(zip(self.outputs, self.body.results, strict=True))
        found = domain(self.body, self.root)
        if found is None or is_contraction(found[0]):
            return [self._own_space(output, result) for output, result in results]
        root, iter_vars, places = found
        reduced = self.reduced
        if reduced is None:
            own = [n for n in self.body.nodes if _reduces(n) and n.args[0] is root]
            reduced = {int(a) for n in own for a in n.attrs["axes"]}
        axes: list[Dim] = [
            self.scope.axis(name, static(extent))
            for name, extent in zip(axis_names(root, reduced), root.shape, strict=True)
        ]
        self._share(places, iter_vars, axes, reduced)
        known: dict[str, Dim] = {str(v): a for v, a in zip(iter_vars, axes, strict=True)}
        stored = [
            (output, result, tuple(substitute(d, known) for d in places[result]))
            for output, result in results
        ]
        used = {s.name for _, _, place in stored for d in place for s in symbols(d)}
        kept = [a for i, a in enumerate(axes) if i not in reduced and str(a) in used]
        inner = [a for i, a in enumerate(axes) if i in reduced and str(a) in used]
        return [(kept, inner, stored)]

    def _own_space(
        self, output: Node, result: Node
    ) -> tuple[list[Dim], list[Dim], list[tuple[Node, Node, Index]]]:
        """The space of one result."""
        index = tuple(
            self.scope.axis(letter(axis), static(extent))
            for axis, extent in enumerate(result.shape)
        )
        return [d for d in index if isinstance(d, Expr)], [], [(output, result, index)]

    def _share(
        self,
        places: Mapping[Node, Index],
        iter_vars: Index,
        axes: Sequence[Dim],
        reduced: Collection[int],
    ) -> None:
        """Let reductions along an axis of the space run along that axis."""
        known = {str(v): i for i, v in enumerate(iter_vars)}
        for node in self.body.nodes:
            if not _reduces(node) or node.args[0] not in places:
                continue
            for axis in map(int, node.attrs["axes"]):
                at = known.get(str(places[node.args[0]][axis]))
                if at is not None and at in reduced:
                    self.values.share(node, axis, axes[at])

    def _stores(
        self, kept: Sequence[Dim], inner: Sequence[Dim], stored: Sequence[tuple[Node, Node, Index]]
    ) -> list[Node]:
        """Memories after loops along the kept axes, and inside, along the others where needed."""
        groups: dict[tuple[Dim, ...], list[int]] = {}  # results by the inner axes that they have
        for i, (_, _, place) in enumerate(stored):
            used = {s.name for d in place for s in symbols(d)}
            groups.setdefault(tuple(a for a in inner if str(a) in used), []).append(i)

        def store(memory: Node, result: Node, place: Index) -> Node:
            scope = self.scope
            value = scope.cast(self.values.value(result, place), memory.dtype)
            return scope.b.store(memory, value, *[scope.number(d) for d in place])

        def program(memories: Sequence[Node]) -> list[Node]:
            final = list(memories)
            for axes, mine in groups.items():

                def steps(held: Sequence[Node], mine: Sequence[int] = mine) -> list[Node]:
                    return [store(m, *stored[i][1:]) for i, m in zip(mine, held, strict=True)]

                made = self._along(axes, [final[i] for i in mine], steps)
                for i, memory in zip(mine, made, strict=True):
                    final[i] = memory
            return final

        return self._along(kept, [output for output, _, _ in stored], program)

    def _along(
        self,
        axes: Sequence[Dim],
        memories: Sequence[Node],
        program: Callable[[Sequence[Node]], list[Node]],
    ) -> list[Node]:
        """Memories after a program at each place of some axes, the first outermost."""
        if not axes:
            return program(memories)
        hints = [str(m.attrs.get("name", "o")).partition("_")[0] for m in memories]
        held = [self.scope.carried(h, m.type) for h, m in zip(hints, memories, strict=True)]
        step = self._along(axes[1:], held, program)
        return self.scope.loop(axes[0], memories, held, step)


def _memory(name: str, type_: TensorType) -> Node:
    return param(name, TensorType(type_.dtype, type_.shape, "global"))


__all__ = ["axis_names", "domain", "emit"]
