"""Groups of nodes that one kernel could compute, and what happens to their axes when two join.

A group has one loop space: a list of axes, each an id with a size. Every value that the group
touches is indexed by these axes: an entry for each of its dims is a tuple of ids, major first (one
id as a rule, several where a reshape merged axes, none for a dim of size 1), or None where the
index is computed (slice, concat, pad, gather, or two readers at different places). Axis rules of
the ops say how entries pass from a value to its operands; that is all that fusion knows about ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stack.ir import ops
from stack.ir.axes import Rule, reshape_rule
from stack.ir.dim import INF, Dim, Expr, bounds, product, substitute, symbols
from stack.ir.node import Node
from stack.ir.types import TupleType
from stack.rewrite.verdict import Why

Entry = tuple[int, ...] | None
Entries = tuple[Entry, ...]

_ids = itertools.count()


def estimate(dim: Dim) -> int:
    """A plausible number for a size: itself, or symbols at 128 within their bounds."""
    if isinstance(dim, Expr):
        values = {s.name: min(max(128, s.low), s.high) for s in symbols(dim)}
        dim = substitute(dim, values)
    return dim if isinstance(dim, int) else min(bounds(dim)[1], INF)


def bytes_of(node: Node) -> int:
    """Estimated bytes of a value."""
    items = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    return sum(estimate(t.bytes) for t in items)


def flops_of(node: Node) -> float:
    """Scalar operations for one element of a value."""
    return ops.lookup(node.op).flops


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that are computed together. Compared by identity; merging makes a new one.

    Attributes:
        members: the nodes, operands first. Cheap nodes that they read are not among them: each
            group that needs one computes it again.
        order: axis ids of the loop space, outermost first.
        sizes: size of each axis.
        axes: entries of members, of cheap nodes in between and of inputs.
        reduced: axes that reductions of the group run over; all of them run over these.
        outputs: members that something outside needs.
        inputs: values from outside.
        dot: the matrix product that the group is an epilogue of.
    """

    members: tuple[Node, ...]
    order: tuple[int, ...]
    sizes: Mapping[int, Dim]
    axes: Mapping[Node, Entries]
    reduced: frozenset[int] = frozenset()
    outputs: tuple[Node, ...] = ()
    inputs: tuple[Node, ...] = ()
    dot: Node | None = None
    first: int = 0  # places of the first and the last member in the block
    last: int = 0
    copied: frozenset[Node] = frozenset()  # members that other groups hold as well
    rule: str = ""  # the fusion rule that joined it last

    @property
    def kind(self) -> str:
        """ "loop", "reduction" or "gemm"."""
        if self.dot is not None:
            return "gemm"
        return "reduction" if self.has("reduce") else "loop"

    @cached_property
    def ops(self) -> frozenset[str]:
        """Names of the ops of the members."""
        return frozenset(n.op for n in self.members)

    def has(self, *names: str) -> bool:
        """Whether a member is one of these ops."""
        return not self.ops.isdisjoint(names)

    @cached_property
    def held(self) -> frozenset[Node]:
        """The members as a set."""
        return frozenset(self.members)

    @property
    def space(self) -> tuple[Dim, ...]:
        """Sizes of the loop space, outermost first; axes of size 1 left out."""
        return tuple(self.sizes[i] for i in self.order)

    @property
    def rows(self) -> tuple[Dim, ...]:
        """Sizes of the axes that are not reduced."""
        return tuple(self.sizes[i] for i in self.order if i not in self.reduced)

    @property
    def row(self) -> tuple[Dim, ...]:
        """Sizes of the reduced axes."""
        return tuple(self.sizes[i] for i in self.order if i in self.reduced)

    @cached_property
    def flops(self) -> float:
        """Scalar operations of all elementwise members, for one element of each."""
        return sum(flops_of(n) for n in self.members)

    @cached_property
    def after_reduction(self) -> frozenset[Node]:
        """Members that depend on a reduction of the group."""
        found: set[Node] = set()
        for node in self.members:
            if node.op == "reduce" or any(a in found for a in reach(node, self.held)):
                found.add(node)
        return frozenset(found)


def reach(node: Node, held: frozenset[Node]) -> list[Node]:
    """Members that a node reads, directly or through nodes that are no members."""
    found: list[Node] = []
    pending = list(node.args)
    seen: set[Node] = set()
    while pending:
        arg = pending.pop()
        if arg in seen:
            continue
        seen.add(arg)
        if arg in held:
            found.append(arg)
        else:
            pending.extend(arg.args)
    return found


def flat(entries: Entries) -> tuple[int, ...] | None:
    """All axis ids of a value in order, or None where an index is computed."""
    out: list[int] = []
    for entry in entries:
        if entry is None:
            return None
        out.extend(entry)
    return tuple(out)


def _meet(a: Entries, b: Entries) -> Entries:
    return tuple(x if x == y else None for x, y in zip(a, b))


def operand_entries(node: Node, entries: Entries, sizes: Mapping[int, Dim]) -> list[Entries]:
    """How a node that is computed at `entries` indexes each of its operands."""
    kind = ops.lookup(node.op).kind
    if kind == "elementwise":
        return [entries if a.shape else () for a in node.args]
    if node.op == "broadcast":
        axes: Sequence[int] = node.attrs["axes"]
        found = [entries[a] for a in axes]
        return [tuple(() if s == 1 else e for e, s in zip(found, node.args[0].shape))]
    if node.op == "transpose":
        perm: Sequence[int] = node.attrs["perm"]
        back: list[Entry] = [None] * len(perm)
        for i, p in enumerate(perm):
            back[p] = entries[i]
        return [tuple(back)]
    if node.op == "reshape":
        return [_reshape_entries(node, entries, sizes)]
    if node.op in ("slice", "reverse", "pad"):
        own = tuple(
            e if _untouched(node, axis) else _unit(s)
            for axis, (e, s) in enumerate(zip(entries, node.args[0].shape))
        )
        return [own, *(() for _ in node.args[1:])]
    if node.op == "concat":
        at = node.attrs["axis"]
        return [
            tuple(
                _unit(s) if axis == at else e for axis, (e, s) in enumerate(zip(entries, a.shape))
            )
            for a in node.args
        ]
    rule = ops.rule_of(node)
    if node.op == "gather" and rule is not None:
        return _by_name(rule, node, entries)
    return [tuple(_unit(s) for s in a.shape) for a in node.args]


def _unit(size: Dim) -> Entry:
    return () if size == 1 else None


def _untouched(node: Node, axis: int) -> bool:
    if node.op == "reverse":
        return axis not in node.attrs["axes"]
    if node.op == "slice":
        start, limit, step = (node.attrs[k][axis] for k in ("start", "limit", "step"))
        return bool(start == 0 and step == 1 and limit == node.args[0].shape[axis])
    return all(node.attrs[k][axis] == 0 for k in ("low", "high", "interior"))


def _by_name(rule: Rule, node: Node, entries: Entries) -> list[Entries]:
    place = {a.names[0]: e for a, e in zip(rule.outputs[0], entries)}
    found: list[Entries] = []
    for operand, arg in zip(rule.inputs, node.args):
        found.append(
            tuple(
                _unit(s) if a.mark == "!" or len(a.names) != 1 else place.get(a.names[0])
                for a, s in zip(operand, arg.shape)
            )
        )
    return found


class _SplitNeeded(Exception):
    """A reshape makes one axis of the space out of several: the space needs them apart."""

    def __init__(self, axis: int, sizes: tuple[Dim, ...]) -> None:
        super().__init__(axis)
        self.axis = axis
        self.sizes = sizes


def _reshape_entries(node: Node, entries: Entries, sizes: Mapping[int, Dim]) -> Entries:
    """Axes that a reshape keeps, splits or merges; all computed where it does neither.

    Raises _SplitNeeded where a merged axis is one axis of the space so far.
    """
    source = node.args[0].shape
    rule = reshape_rule(source, node.shape)
    length: dict[str, Dim] = {
        a.names[0]: s for a, s in zip(rule.inputs[0], source) if len(a.names) == 1
    }
    place: dict[str, Entry] = {}
    for axis, entry in zip(rule.outputs[0], entries):
        if len(axis.names) == 1:
            place[axis.names[0]] = entry
            continue
        if entry is None or not axis.names:
            continue
        parts = tuple(length[n] for n in axis.names)
        real = [n for n in axis.names if length[n] != 1]
        if len(entry) == 1 and len(real) > 1:
            raise _SplitNeeded(entry[0], tuple(s for s in parts if s != 1))
        if [sizes[i] for i in entry] == [length[n] for n in real]:
            place.update({n: () for n in axis.names})
            place.update({n: (i,) for n, i in zip(real, entry)})
    out: list[Entry] = []
    for axis, size in zip(rule.inputs[0], source):
        parts_of = [place.get(n) for n in axis.names]
        if any(p is None for p in parts_of):
            out.append(_unit(size))
        else:
            out.append(tuple(i for p in parts_of if p is not None for i in p))
    return tuple(out)


def single(
    node: Node, place: int, is_cheap: Callable[[Node], bool], inputs: Iterable[Node]
) -> Group:
    """A group of one node and the cheap nodes that it reads."""
    shape = node.args[0].shape if node.op == "reduce" else node.shape
    ids: list[Entry] = [() if s == 1 else (next(_ids),) for s in shape]
    space = _Space(
        [e[0] for e in ids if e],
        {e[0]: s for e, s in zip(ids, shape) if e},
        {},
        set[int](),
    )
    if node.op == "reduce":
        gone: Sequence[int] = node.attrs["axes"]
        space.reduced = {e[0] for i, e in enumerate(ids) if e and i in gone}
    while True:
        try:
            space.axes = _spread(node, ids, is_cheap, space.sizes)
            break
        except _SplitNeeded as need:
            new = space.split(need.axis, need.sizes)
            ids = [_put(e, need.axis, new) for e in ids]
    return Group(
        (node,),
        tuple(space.order),
        space.sizes,
        space.axes,
        frozenset(space.reduced),
        (node,),
        tuple(inputs),
        node if node.op == "dot" else None,
        place,
        place,
    )


def _spread(
    node: Node, ids: Sequence[Entry], is_cheap: Callable[[Node], bool], sizes: Mapping[int, Dim]
) -> dict[Node, Entries]:
    axes: dict[Node, Entries] = {}
    pending: list[tuple[Node, Entries]] = []
    if node.op == "reduce":
        axes[node] = tuple(e for i, e in enumerate(ids) if i not in node.attrs["axes"])
        pending = [(node.args[0], tuple(ids))]
    else:
        axes[node] = tuple(ids)
        if node.op != "dot":
            pending = list(zip(node.args, operand_entries(node, tuple(ids), sizes)))
    while pending:
        value, entries = pending.pop()
        known = axes.get(value)
        now = entries if known is None else _meet(known, entries)
        if now == known:
            continue
        axes[value] = now
        if value.args and is_cheap(value):
            pending.extend(zip(value.args, operand_entries(value, now, sizes)))
    return axes


@dataclass
class Maps:
    """How the axes of a producer sit in its consumer.

    Attributes:
        place: producer axis to consumer axes, None where the consumer reads at a computed index.
        moved: whether any is None, so that the producer is computed again for each read.
        recomputed: scalar operations that are repeated for each element of the space.
        merged: the group that both would make.
    """

    place: dict[int, Entry] = field(default_factory=dict[int, Entry])
    recomputed: float = 0
    merged: Group | None = None

    @property
    def moved(self) -> bool:
        return any(e is None for e in self.place.values())


@dataclass
class _Space:
    """The consumer's space while it is refined."""

    order: list[int]
    sizes: dict[int, Dim]
    axes: dict[Node, Entries]
    reduced: set[int]

    def split(self, axis: int, sizes: Sequence[Dim]) -> tuple[int, ...]:
        """Replace an axis by several, major first."""
        new = tuple(next(_ids) for _ in sizes)
        at = self.order.index(axis)
        self.order[at : at + 1] = new
        self.sizes.update(zip(new, sizes))
        if axis in self.reduced:
            self.reduced.remove(axis)
            self.reduced.update(new)
        for node, entries in self.axes.items():
            if any(e is not None and axis in e for e in entries):
                self.axes[node] = tuple(_put(e, axis, new) for e in entries)
        return new


def _put(entry: Entry, axis: int, new: tuple[int, ...]) -> Entry:
    if entry is None or axis not in entry:
        return entry
    return tuple(x for i in entry for x in (new if i == axis else (i,)))


def join(producer: Group, consumer: Group) -> Maps | Why:
    """Put the producer's axes into the consumer's space, or say why they do not fit.

    The merged group of the answer has no outputs and inputs yet: those depend on the block.
    """
    space = _Space(
        list(consumer.order), dict(consumer.sizes), dict(consumer.axes), set(consumer.reduced)
    )
    place: dict[int, Entry] = {}
    read = [v for v in producer.outputs if v in consumer.axes]
    for value in read:
        _bind_value(producer, value, space, place)
    loose = [p for p in producer.order if p not in place]
    if loose:
        _bind_shared(producer, space, place)
        loose = [p for p in producer.order if p not in place]
    order = space.order
    if loose:
        taken = {i for e in place.values() if e is not None for i in e}
        free = [i for i in space.order if i not in taken]
        if not free:
            for p in loose:
                fresh = next(_ids)
                space.sizes[fresh] = producer.sizes[p]
                place[p] = (fresh,)
            # the consumer works on rows of the producer: the producer's order counts
            order = [i for p in producer.order for i in place[p] or ()]
            if not set(space.order) <= set(order):
                return Why("the two have no common loop: axes of the consumer are left over")
        elif [space.sizes[i] for i in free] == [producer.sizes[p] for p in loose]:
            place.update({p: (i,) for p, i in zip(loose, free)})
        else:
            ours = ", ".join(str(producer.sizes[p]) for p in loose)
            theirs = ", ".join(str(space.sizes[i]) for i in free)
            return Why(f"the producer loops over [{ours}] where the consumer loops over [{theirs}]")
    images = [i for e in place.values() if e is not None for i in e]
    if len(images) != len(set(images)):
        return Why("two axes of the producer would be one axis of the consumer")
    mapped = {i for p in producer.reduced for i in place[p] or (-1,)}
    if mapped and -1 in mapped:
        return Why("a reduced axis is read at a computed index")
    if mapped and space.reduced and mapped != space.reduced:
        return Why("reduced axis differs: the two reductions run over different axes")
    axes = space.axes
    for node, entries in producer.axes.items():
        moved = tuple(_through(e, place) for e in entries)
        axes[node] = _meet(axes[node], moved) if node in axes else moved
    merged = Group(
        (),
        tuple(order),
        space.sizes,
        axes,
        frozenset(mapped | space.reduced),
        dot=producer.dot or consumer.dot,
        copied=producer.copied | consumer.copied,
    )
    return Maps(place, 0, merged)


def _through(entry: Entry, place: Mapping[int, Entry]) -> Entry:
    if entry is None:
        return None
    out: list[int] = []
    for i in entry:
        image = place[i]
        if image is None:
            return None
        out.extend(image)
    return tuple(out)


def _bind_value(producer: Group, value: Node, space: _Space, place: dict[int, Entry]) -> None:
    """Axes of the producer from one value that the consumer reads."""
    theirs = producer.axes[value]
    for dim in range(len(theirs)):
        own, read = theirs[dim], space.axes[value][dim]
        if own == () or own is None:
            continue
        if read is None or (len(own) > 1 and len(read) > 1 and len(own) != len(read)):
            for p in own:
                place[p] = None
            continue
        if len(own) == 1:
            _bind(place, own[0], read)
            continue
        if len(read) == 1:
            new = space.split(read[0], [producer.sizes[p] for p in own])
            for p, entry in place.items():
                place[p] = _put(entry, read[0], new)
            read = new
        if [space.sizes[i] for i in read] != [producer.sizes[p] for p in own]:
            for p in own:
                place[p] = None
            continue
        for p, i in zip(own, read):
            _bind(place, p, (i,))


def _bind(place: dict[int, Entry], axis: int, entry: tuple[int, ...]) -> None:
    place[axis] = entry if place.get(axis, entry) == entry else None


def _bind_shared(producer: Group, space: _Space, place: dict[int, Entry]) -> None:
    """Axes from values that both read, where they agree with what is bound already."""
    for value, entries in producer.axes.items():
        other = space.axes.get(value)
        if other is None:
            continue
        pairs = [
            (e[0], o[0])
            for e, o in zip(entries, other)
            if e is not None and o is not None and len(e) == 1 and len(o) == 1
        ]
        if any(place.get(p, (c,)) != (c,) for p, c in pairs):
            continue
        taken = {i for e in place.values() if e is not None for i in e}
        for p, c in pairs:
            if p not in place and c not in taken and space.sizes[c] == producer.sizes[p]:
                place[p] = (c,)


def check_contract(group: Group, limit: float) -> tuple[float, Why | None]:
    """What every group promises to backends; also the operations that it repeats.

    - every output is the loop space in row-major order, or, in a reduction, the space without the
      reduced axes;
    - every reduction runs over the same axes of the whole space;
    - a second phase (values of the whole space that depend on a reduction) needs the reduced axes
      innermost;
    - what is computed at a computed index, or in fewer axes than the space, is cheap to repeat.
    """
    whole = set(group.order)
    rows = tuple(i for i in group.order if i not in group.reduced)
    for out in group.outputs:
        place = flat(group.axes[out])
        if place is None:
            return 0, Why("a value that is needed elsewhere is read at a computed index", out)
        if place != group.order and not (group.reduced and place == rows):
            return 0, Why(f"the result {out.type} is not the loop space of the group", out)
    repeated = 0.0
    phase = group.after_reduction
    for node in group.members:
        place = flat(group.axes[node])
        if node is group.dot:
            if place != group.order:
                return 0, Why("the product is read at another index than it is made", node)
            continue
        if node.op == "reduce":
            read = flat(group.axes[node.args[0]])
            if read is None or set(read) != whole:
                return 0, Why("a reduction reads less than the loop space of the group", node)
            continue
        if place is None:
            if node in phase:
                return 0, Why("a value after a reduction is read at a computed index", node)
            repeated += flops_of(node)
            continue
        missing = frozenset(whole) - set(place)
        if missing and place and not (group.reduced and missing == group.reduced):
            repeated += flops_of(node)
        elif not missing and node in phase:
            tail = group.order[len(group.order) - len(group.reduced) :]
            if frozenset(tail) != group.reduced:
                return 0, Why("the reduced axis is not innermost and values after it need it", node)
    if repeated > limit:
        return repeated, Why(f"{repeated:g} operations would be repeated for every element")
    return repeated, None


def few_rows(group: Group) -> bool:
    """Whether one long row would keep all but one core idle."""
    return (
        estimate(product(group.rows)) < 4
        and estimate(product(group.row)) > 1 << 16
        and any(
            n in group.after_reduction and set(flat(group.axes[n]) or ()) == set(group.order)
            for n in group.members
        )
    )
