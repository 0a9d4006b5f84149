"""What work takes on a machine: a roofline for segments, alpha and beta for collectives."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.cost import cost
from stack.ir.mesh import Mesh
from stack.ir.mesh_ops import group_of, halo_messages, sent_bytes
from stack.ir.names import is_inline
from stack.ir.node import Func, Node, walk
from stack.ir.traits import is_contraction, is_reduction
from stack.sim.machines import Link, Machine


def compute_seconds(func: Func, machine: Machine) -> float:
    """Of a segment: each product on its own roofline, and between them what is in memory once.

    Elementwise work is taken to be fused with what it reads or feeds, and a branch to be taken.
    """
    seconds = 0.0
    stored: set[Node] = set(func.results)
    nodes = [node for _, node in walk(func.body)]
    for node in nodes:
        if is_contraction(node):
            found = cost(node)
            flops, moved = int(str(found.flops)), int(str(found.bytes))
            dtype = node.args[0].dtype.name
            seconds += machine.launch + max(
                flops / machine.rate(dtype), moved / machine.memory_rate
            )
        elif is_reduction(node):
            stored.add(node.args[0])
    products = {n for n in nodes if is_contraction(n)}
    read = {a for n in nodes if n not in products for a in n.args if _is_stored(a, products)}
    traffic = sum(_bytes(n) for n in read) + sum(_bytes(n) for n in stored - products)
    launches = len(stored - products)
    return seconds + launches * machine.launch + traffic / machine.memory_rate


def _is_stored(node: Node, products: set[Node]) -> bool:
    return node in products or (node.op == "param" and not is_inline(node))


def _bytes(node: Node) -> int:
    return sum(int(str(t.bytes)) for t in node.types)


def link_between(ranks: Sequence[int], links: Sequence[Link]) -> Link:
    """The nearest tier that joins these ranks."""
    for link in links:
        if not link.ranks or len({rank // link.ranks for rank in ranks}) == 1:
            return link
    return links[-1]


def collective_seconds(node: Node, mesh: Mesh, machine: Machine) -> float:
    """Of a collective between the ranks of its group, in a ring over the slowest tier in it.

    Where a group spans tiers evenly, an all-reduce goes tier by tier: scattered within the near
    one, summed across, gathered within.
    """
    if node.op == "permute":
        order: Sequence[int] = node.attrs["order"]
        link = link_between([0, order[0]], machine.links)
        return link.alpha + link.beta * _bytes(node)
    over = group_of(node.attrs)[1]
    group = mesh.groups(over)[0]
    if node.op == "halo":  # with neighbours; those of the first rank are as far as those of others
        link = link_between(group[:2], machine.links)
        return sum(link.alpha + link.beta * size for size in halo_messages(node))
    size = _bytes(node.args[0])
    near = machine.links[0]
    inside = [r for r in group if near.ranks and r // near.ranks == group[0] // near.ranks]
    if node.op == "all_reduce" and 1 < len(inside) < len(group):
        outside = len(group) // len(inside)
        far = link_between(group, machine.links)
        part = -(-size // len(inside))
        within = _ring("reduce_scatter", len(inside), size, near)
        across = _ring("all_reduce", outside, part, far)
        return within + across + _ring("all_gather", len(inside), part, near)
    return _ring(node.op, len(group), size, link_between(group, machine.links))


def _ring(op: str, ranks: int, size: int, link: Link) -> float:
    waits = (ranks - 1) * (2 if op == "all_reduce" else 1)
    return waits * link.alpha + sent_bytes(op, ranks, size) * link.beta
