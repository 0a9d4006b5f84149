"""emit: lower a fusion group or a stream to its plain loop nest.

The nest has one serial loop for each axis, and scalars inside. Axes of one element have no loop,
except for the columns and the reduction of a matrix product. Results that share the axes of the
group share its loops: parallel axes outside, then a loop over the reduction axis for the results
that have it. Each reduction is a loop that carries an accumulator. A stream is one loop over its
axis that carries all of its states (`online.py`). The nest is ordinary IR, which prints, parses and
runs in the interpreter. It does not depend on a target.

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
from stack.ir.bounds import INT32
from stack.ir.builder import param
from stack.ir.dim import Dim, Expr, substitute, symbol
from stack.ir.equivalence import once_in
from stack.ir.node import Block, Node
from stack.ir.streaming import finished
from stack.ir.traits import (
    arrays_of,
    is_contraction,
    is_reduction,
    is_running,
    is_stream,
    mixes,
    op_names,
)
from stack.ir.types import F64, I32, I64, DType, TensorType
from stack.passes.nest.online import Online
from stack.passes.nest.scope import Scope, letter, looped, names_in
from stack.passes.nest.serial_loops import scan_nest, scatter_nest
from stack.passes.nest.values import Scalars
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.contraction import parts_of
from stack.passes.tiling.frame import CannotTile, static

# parallel axes, reduction axes, and for each result the output, the value to store and its index
LoopSpace = tuple[list[Dim], list[Dim], list[tuple[Node, Node, Index]]]


def emit(
    group: Node,
    integer: DType | None = None,
    root: Node | None = None,
    reduced: Collection[int] | None = None,
    running: DType = F64,
) -> Node:
    """Lowers a group to a kernel: its plain loop nest.

    Args:
        group: a `fusion` or a `stream` with constant sizes.
        integer: the type of indices; by default 32 bits unless an array needs more.
        root: the node whose axes span the group; by default chosen by `domain`.
        reduced: the reduction axes of the root, which get the inner loops; by default the axes
            over which reductions of the root reduce.
        running: the type of running sums and products of f32. Their errors grow with the length of
            a serial loop, so F64 is the default.

    Raises:
        CannotTile: an op has no loop nest, or a size is not constant.
    """
    return _Nest(group, integer, root, reduced, running).kernel()


def domain(
    body: Block, root: Node | None = None, results: Sequence[Node] = ()
) -> tuple[Node, Index, dict[Node, Index]] | None:
    """Finds the index space of a group.

    Args:
        body: the body of the group.
        root: the node whose axes span the space. By default the largest contraction; without one,
            the largest operand of a reduction; without one, the largest result.
        results: the results that it has to reach; by default all results of the body.

    Returns:
        The root, a symbol for each of its axes, and the index of each value in terms of these
        symbols. None if these axes do not determine the index of every result.
    """
    if root is None:
        return _largest_domain(body)
    axes = tuple(symbol(f"d{i}", 0, max(static(s) - 1, 0)) for i, s in enumerate(root.shape))
    try:
        places = index_maps_of(body, root, axes)
    except CannotTile:
        return None
    results = results or body.results
    real = [a for a, size in zip(axes, root.shape, strict=True) if size != 1]
    for result in results:
        if [s for s in result.shape if s != 1] == [s for s in root.shape if s != 1]:
            # rows that are broadcast along another axis
            own = iter(real)
            places.setdefault(result, tuple(0 if s == 1 else next(own) for s in result.shape))
    return (root, axes, places) if all(r in places for r in results) else None


@once_in
def _largest_domain(body: Block) -> tuple[Node, Index, dict[Node, Index]] | None:
    spanning = [n for n in body.nodes if is_contraction(n)]
    spanning = spanning or [n.args[0] for n in body.nodes if _reduces(n)] or list(body.results)
    most = max(static(n.tensor.size) for n in spanning)
    roots = dict.fromkeys(n for n in spanning if static(n.tensor.size) == most)
    return next(filter(None, (domain(body, root) for root in roots)), None)


def _is_full(
    root: Node, axes: Index, places: Mapping[Node, Index], results: Sequence[Node]
) -> bool:
    """True if the results can share the loops over the axes of `root`.

    If `root` is a matmul, the index of each result must use every axis of more than one element.
    """
    needed = {str(a) for a, extent in zip(axes, root.shape, strict=True) if static(extent) > 1}
    return not is_contraction(root) or all(needed <= names_in(places[r]) for r in results)


def axis_names(root: Node, reduced: Collection[int]) -> list[str]:
    """Returns the name of the loop over each axis of `root`, whose axes span the loops of a kernel;
    "" for axes of extent 1, which have no loop.

    The columns of a matrix product, its last axis, always have a loop.
    """
    names: list[str] = []
    for axis, extent in enumerate(root.shape):
        count = sum(n.startswith("r") for n in names)
        own = (f"r_{count}" if count else "r") if axis in reduced else letter(axis)
        is_columns = is_contraction(root) and axis == root.tensor.rank - 1
        names.append(own if static(extent) > 1 or is_columns else "")
    return names


def _reduces(node: Node) -> bool:
    return is_reduction(node) and bool(node.attrs["axes"])


class _Nest:
    """Builds the loop nest of one group."""

    def __init__(
        self,
        group: Node,
        integer: DType | None,
        root: Node | None,
        reduced: Collection[int] | None,
        running: DType,
    ) -> None:
        self.group, self.root, self.reduced, self.running = group, root, reduced, running
        own = group.blocks[0]
        self.is_stream = is_stream(group)
        self.body = own
        if self.is_stream:
            self.body = Block(own.params, finished(group, own.results))
        nodes = (*self.body.params, *self.body.nodes)
        sizes = [static(t.size) for n in nodes for t in n.types]
        if 0 in sizes:
            raise CannotTile("an array in it is empty")
        if any(t.dtype.kind == "c" for n in nodes for t in n.types):
            raise CannotTile("it computes with complex numbers")
        self.arrays = arrays_of(self.body)
        inputs = (*self.body.params, *self.arrays)
        memory = {p: param(f"p{i}", _in_global(p.tensor)) for i, p in enumerate(inputs)}
        usual = I64 if any(size > INT32[1] for size in sizes) else I32
        self.scope = Scope(integer or usual, (str(m.attrs["name"]) for m in memory.values()))
        self.values = Scalars(self.scope, memory, own)
        self.outputs = [param(f"o{i}", _in_global(t)) for i, t in enumerate(group.types)]
        for output in self.outputs:
            self.scope.fresh.own(str(output.attrs["name"]))

    def kernel(self) -> Node:
        """Builds and returns the kernel node."""
        (first, *_) = self.body.results
        final: dict[Node, Node] = {}
        if len(self.body.results) == 1 and mixes(first):
            parts = self.values, first, self.outputs[0], self._along
            is_scan = is_running(first)
            made = scan_nest(*parts, self.running) if is_scan else scatter_nest(*parts)
            final[self.outputs[0]] = made
        else:
            for kept, inner, stored in self._stream() if self.is_stream else self._spaces():
                names = [o for o, _, _ in stored]
                final.update(zip(names, self._stores(kept, inner, stored), strict=True))
        params = [*self.values.memory.values(), *self.outputs]
        block = self.scope.b.block(params, [final[o] for o in self.outputs])
        attrs: dict[str, object] = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "tile",
            "ops": op_names(self.group.blocks[0].nodes),
        }
        if "padded" in self.group.attrs:
            attrs["padded"] = self.group.attrs["padded"]
        return Node("kernel", [*self.group.args, *self.arrays], attrs, self.group.type, (block,))

    def _spaces(self) -> list[LoopSpace]:
        """Groups the results of the kernel by the loops that compute them: one loop space for each
        matmul if each result depends on one of several; else one for all results if possible, else
        one for each result.

        Returns:
            For each space the parallel axes, the reduction axes, and for each result the output,
            the value to store and its index.
        """
        stored = list(zip(self.outputs, self.body.results, strict=True))
        spaces: list[LoopSpace] = []
        for dot, results in parts_of(self.body):
            own = domain(self.body, dot, results)
            if own is None or not _is_full(*own, results):
                break
            spaces.append(self._space(*own, [(o, r) for o, r in stored if r in results]))
        else:
            if spaces:
                return spaces
        found = domain(self.body, self.root)
        if found is not None and _is_full(*found, self.body.results):
            return [self._space(*found, stored)]
        return [self._own_space(output, result) for output, result in stored]

    def _space(
        self,
        root: Node,
        iter_vars: Index,
        places: Mapping[Node, Index],
        results: Sequence[tuple[Node, Node]],
    ) -> LoopSpace:
        """Creates the loops over the axes of node `root`, for some results, each with its output
        memory. Returns the same items as `_spaces` for one space.
        """
        reduced = self.reduced
        if reduced is None:
            own = [n for n in self.body.nodes if _reduces(n) and n.args[0] is root]
            reduced = {int(a) for n in own for a in n.attrs["axes"]}
        axes: list[Dim] = [
            self.scope.axis(name, static(extent), bool(name))
            for name, extent in zip(axis_names(root, reduced), root.shape, strict=True)
        ]
        known: dict[str, Dim] = {str(v): a for v, a in zip(iter_vars, axes, strict=True)}
        numbers = {str(v): i for i, v in enumerate(iter_vars) if i in reduced}
        for node in filter(_reduces, self.body.nodes) if reduced else ():
            for axis in map(int, node.attrs["axes"]) if node.args[0] in places else ():
                # a reduction over an axis of the space gets no loop of its own
                at = numbers.get(str(places[node.args[0]][axis]))
                if at is not None:
                    self.values.share(node, axis, axes[at])
        stored = [
            (output, result, tuple(substitute(d, known) for d in places[result]))
            for output, result in results
        ]
        used = names_in(d for _, _, place in stored for d in place)
        # a loop over one column stays, even if no result has that axis: steps of a product tile it
        ones = zip(axes, root.shape, strict=True)
        used |= {str(a) for a, extent in ones if isinstance(a, Expr) and static(extent) == 1}
        kept = [a for i, a in enumerate(axes) if i not in reduced and str(a) in used]
        inner = [a for i, a in enumerate(axes) if i in reduced and str(a) in used]
        return kept, inner, stored

    def _stream(self) -> list[LoopSpace]:
        """Creates the loops of a `stream` op, including the one over its streamed axis. Returns the
        loop spaces of its results, as `_spaces` does.
        """
        online = Online(self.group, self.values)
        results = list(zip(self.outputs, self.body.results, strict=True))
        try:
            kept, inner, places = online.space()
        except CannotTile:
            if "part" in self.group.attrs:
                raise  # a loop space of its own has no axis of parts
            spaces = [self._own_space(output, result) for output, result in results]
        else:
            stored = [(*pair, at) for pair, at in zip(results, places, strict=True)]
            spaces = [(kept, inner, stored)]
        wanted = [(result, _at(result, place)) for *_, s in spaces for _, result, place in s]
        self.values = online.elements(wanted)
        return spaces

    def _own_space(self, output: Node, result: Node) -> LoopSpace:
        """Creates loops over the axes of one result alone; no other result shares them."""
        index = tuple(
            self.scope.axis(letter(axis), static(extent))
            for axis, extent in enumerate(result.shape)
        )
        return looped(index), [], [(output, result, index)]

    def _stores(
        self, kept: Sequence[Dim], inner: Sequence[Dim], stored: Sequence[tuple[Node, Node, Index]]
    ) -> list[Node]:
        """Builds the loops of a loop space. Returns the outputs after them."""
        groups: dict[tuple[Dim, ...], list[int]] = {}  # results by their reduction axes
        for i, (_, _, place) in enumerate(stored):
            used = names_in(place)
            groups.setdefault(tuple(a for a in inner if str(a) in used), []).append(i)

        def program(memories: Sequence[Node]) -> list[Node]:
            final = list(memories)
            for axes, mine in groups.items():

                def steps(held: Sequence[Node], mine: Sequence[int] = mine) -> list[Node]:
                    made: list[Node] = []
                    for i, memory in zip(mine, held, strict=True):
                        _, result, place = stored[i]
                        value = self.values.value(result, _at(result, place))
                        made.append(self.values.stored(memory, value, place))
                    return made

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
        """Builds nested loops over axes, the first one outermost, which carry the output
        `memories`; `program` builds the innermost body. Returns the memories after the loops.
        """
        if not axes:
            return program(memories)
        hints = [str(m.attrs.get("name", "o")).partition("_")[0] for m in memories]
        held = [self.scope.carried(h, m.type) for h, m in zip(hints, memories, strict=True)]
        step = self._along(axes[1:], held, program)
        return self.scope.loop(axes[0], memories, held, step)


def _at(result: Node, place: Index) -> Index:
    """Returns the last indices of `place`, one for each axis of a stream's result: without the
    index of a part of the streamed axis."""
    return place[len(place) - result.tensor.rank :]


def _in_global(type_: TensorType) -> TensorType:
    return TensorType(type_.dtype, type_.shape, "global")
