"""Maps the axes of two groups into one loop space when the groups are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.ir.node import Node
from stack.rewrite.entries import Entry, Space, fresh_axis, meet, put
from stack.rewrite.group import Group
from stack.rewrite.verdict import Why


@dataclass
class Maps:
    """The loop indices of a producer group that is computed inside its consumer.

    Attributes:
        place: maps each axis of the producer to the consumer's axes that index it; None if the
            consumer reads at a computed index.
        moved: True if some axis maps to None, so that the producer is recomputed for each read.
        recomputed: scalar operations that are repeated for each element of the consumer's loops.
        merged: the group of both.
    """

    place: dict[int, Entry] = field(default_factory=dict[int, Entry])
    recomputed: float = 0
    merged: Group | None = None

    @property
    def moved(self) -> bool:
        return any(e is None for e in self.place.values())


def join(producer: Group, consumer: Group) -> Maps | Why:
    """Maps the loop axes of a producer group to those of its consumer, and merges both to one
    group; or returns why the axes do not fit.

    The merged group has no outputs and inputs yet, because those depend on the block.
    """
    space = Space(
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
                fresh = fresh_axis()
                space.sizes[fresh] = producer.sizes[p]
                place[p] = (fresh,)
            # the consumer works on rows of the producer: use the producer's order
            order = [i for p in producer.order for i in place[p] or ()]
            if not set(space.order) <= set(order):
                return Why(
                    "the two have no common loop: axes of the consumer are left over", kind="axes"
                )
        elif [space.sizes[i] for i in free] == [producer.sizes[p] for p in loose]:
            place.update({p: (i,) for p, i in zip(loose, free)})
        else:
            ours = ", ".join(str(producer.sizes[p]) for p in loose)
            theirs = ", ".join(str(space.sizes[i]) for i in free)
            text = f"the producer loops over [{ours}] but the consumer loops over [{theirs}]"
            return Why(text, kind="axes")
    images = [i for e in place.values() if e is not None for i in e]
    if len(images) != len(set(images)):
        return Why("two axes of the producer would be one axis of the consumer", kind="axes")
    mapped = {i for p in producer.reduced for i in place[p] or (-1,)}
    if mapped and -1 in mapped:
        return Why("a reduced axis is read at a computed index", kind="axes")
    if mapped and space.reduced and mapped != space.reduced:
        return Why("reduced axis differs: the two reductions run over different axes", kind="axes")
    axes = space.axes
    for node, entries in producer.axes.items():
        moved = tuple(_through(e, place) for e in entries)
        axes[node] = meet(axes[node], moved) if node in axes else moved
    merged = Group(
        (),
        tuple(order),
        space.sizes,
        axes,
        frozenset(mapped | space.reduced),
        dots=(*producer.dots, *consumer.dots),
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


def _bind_value(producer: Group, value: Node, space: Space, place: dict[int, Entry]) -> None:
    """Maps axes of the producer to axes of the consumer through a value that the producer computes
    and the consumer reads: axes that index the same dim correspond. Axes without a counterpart map
    to None; an axis of the space is split if a dim needs it.
    """
    theirs = producer.axes[value]
    for dim in range(len(theirs)):
        own, read = theirs[dim], space.axes[value][dim]
        if own == () or own is None:
            continue
        if read is None or (len(own) > 1 and len(read) > 1 and len(own) != len(read)):
            for p in own:
                place[p] = None
            continue
        if len(own) > 1 and len(read) == 1:
            new = space.split(read[0], [producer.sizes[p] for p in own])
            for p, entry in place.items():
                place[p] = put(entry, read[0], new)
            read = new
        images: list[Entry] = [None] * len(own)
        if len(own) == 1:
            images = [read]
        elif [space.sizes[i] for i in read] == [producer.sizes[p] for p in own]:
            images = [(i,) for i in read]
        for p, image in zip(own, images, strict=True):
            place[p] = image if place.get(p, image) == image else None


def _bind_shared(producer: Group, space: Space, place: dict[int, Entry]) -> None:
    """Maps the remaining axes of the producer to axes of equal size that index the same dim of a
    value that both groups read. Skips values that contradict the mapping so far.
    """
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
