"""Cost model of a machine: a roofline for segments, alpha-beta for collectives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from stack.ir.cost import cost
from stack.ir.func import Func
from stack.ir.node import Node, is_inline, topological, walk
from stack.ir.ops import is_whole_view
from stack.ir.traits import (
    behind,
    is_contraction,
    is_input,
    is_operator,
    writes_by_data,
)
from stack.mesh.meshes import Mesh
from stack.mesh.ops import group_of, halo_messages, sent_bytes
from stack.rewrite.stream_candidates import streamed
from stack.sim.machines import Cluster, Link
from stack.sim.rank_values import RankValues
from stack.sim.stream_kernels import kernels_of
from stack.sim.stream_order import connected
from stack.sim.visible import visible_shares

# Passes over the sums of a scatter: they are zeroed, and read by the next kernel. Atomic additions
# read a row and read and write its sum, at half the rate; one read of the rows is counted already.
SCATTER_PASSES = 1 + 1 + (2 * 3 - 1)
_ORDERS = ("lt", "le", "gt", "ge")


def compute_seconds(func: Func, machine: Cluster, values: RankValues | None = None) -> float:
    """Returns the time of a function between collectives: a roofline for each matmul, one pass over
    memory for the rest.

    Elementwise ops are assumed to be fused with their producers or consumers. Branches are assumed
    to be taken. A hosted operator is one kernel. If the machine has streams, attention scores never
    reach memory, each kernel that reads them computes them, and the part hidden by a positional
    mask is not computed.

    `values`: integers that are known on the rank, such as positions; they tell the hidden part.
    """
    nodes = nodes_of(func)
    inner = streamed(nodes, func.results, machine.stream_balance)
    seen = visible_shares(func.body, inner, connected(nodes, inner), values or RankValues())
    kernels = kernels_of(nodes, inner)
    is_gradient = any(count > 1 for count in kernels.values())
    seconds = 0.0
    for node in nodes:
        if is_contraction(node):
            found = cost(node)
            tables = [n for n in dict.fromkeys((node, *node.args)) if n in inner]
            moved = int(str(found.bytes)) - sum(map(_bytes, tables))
            share = min((seen.get(n, 1.0) for n in tables), default=1.0)
            rate = _rate(machine, node.args[0].dtype.name, bool(tables), is_gradient)
            work = int(str(found.flops)) * share * kernels.get(node, 1) / rate
            seconds += machine.launch + max(work, moved / machine.traffic_rate)
        elif is_operator(node):
            seconds += machine.launch + _operator_seconds(node, machine)
        elif writes_by_data(node):
            seconds += SCATTER_PASSES * _scattered(node) / machine.traffic_rate
    products = {n for n in nodes if is_contraction(n)}
    stored = _stored(func, nodes, inner) - products - set(filter(writes_by_data, nodes))
    rest = (n for n in nodes if n not in products)
    read = {a for n in rest for a in n.args if _is_read(a, products) and a not in inner}
    traffic = sum(map(_bytes, read)) + sum(map(_bytes, stored))
    return seconds + len(stored) * machine.launch + traffic / machine.traffic_rate


def stored_bytes(func: Func, machine: Cluster) -> int:
    """Returns the bytes that a function between collectives allocates while it runs: its results,
    and an arena for the other values that it writes to memory, see `stack.run.memory`.
    """
    nodes = nodes_of(func)
    stored = _stored(func, nodes, streamed(nodes, func.results, machine.stream_balance))
    made = set(map(behind, func.results))
    end = {node: len(nodes) for node in made}
    for number, node in reversed(list(enumerate(nodes))):  # through values fused with their readers
        last = number if node in stored else end.get(node, number)
        for arg in node.args:
            end[arg] = max(end.get(arg, 0), last)
    change = [0] * (len(nodes) + 2)
    for number, node in enumerate(nodes):
        if node in stored and node not in made:
            size = _scattered(node) if writes_by_data(node) else _bytes(node)
            change[number] += size
            change[end.get(node, number) + 1] -= size
    return max(accumulate(change)) + sum(map(_bytes, made & stored))


def nodes_of(func: Func) -> list[Node]:
    """Returns the nodes of a function and its blocks, but not those inside of operators."""
    listed = list(walk(func.body))
    operators = [node for _, node in listed if is_operator(node)]
    hidden = {inner for o in operators for block in o.blocks for inner, _ in walk(block)}
    return [node for block, node in listed if block not in hidden]


def _operator_seconds(node: Node, machine: Cluster) -> float:
    """Returns the time of a kernel by hand: the matmuls of the decomposition, half of them if it
    compares positions, as a causal mask does; or one pass over operands and results.
    """
    inner = [n for b in node.blocks for _, n in walk(b)]
    is_half = any(n.op in _ORDERS and not any(map(is_input, topological([n]))) for n in inner)
    products = filter(is_contraction, inner)
    flops = sum(int(str(cost(n).flops)) for n in products) * (0.5 if is_half else 1.0)
    moved = sum(map(_bytes, (node, *node.args)))
    rate = _rate(machine, node.args[0].dtype.name, True, False)
    return max(flops / rate, moved / machine.traffic_rate)


def _scattered(node: Node) -> int:
    """Returns the bytes of the sums of a scatter: those of touched rows, if fewer than all."""
    return min(_bytes(node), _bytes(node.args[-1]))


def _stored(func: Func, nodes: Sequence[Node], inner: frozenset[Node]) -> set[Node]:
    """Returns the values of a segment that are written to memory: results, matmuls, operands of
    matmuls, and scatters. Excludes parameters and `inner`, values that streams recompute instead.
    """
    products = [n for n in nodes if is_contraction(n) or is_operator(n)]
    read = (_behind(a) for n in products for a in n.args)
    made = map(behind, func.results)
    found = {*products, *filter(writes_by_data, nodes), *(n for n in (*read, *made) if n.args)}
    return found - inner - {*func.params}


def _behind(node: Node) -> Node:
    """Skips views that show every element: returns the value that they view."""
    while is_whole_view(node):
        node = node.args[0]
    return node


def _rate(machine: Cluster, dtype: str, in_stream: bool, is_gradient: bool) -> float:
    """Returns flop/s of a matmul. In a stream, softmax between the matmuls lowers it; in that of
    gradients, a kernel holds the tiles of two tables.
    """
    gpu = machine.gpu
    if not in_stream or gpu is None:
        return machine.rate(dtype)
    share = machine.gradient_share if is_gradient else gpu.stream_share
    return machine.rate(dtype) * share / machine.share


def _is_read(node: Node, products: set[Node]) -> bool:
    return node in products or (node.op == "param" and not is_inline(node))


def _bytes(node: Node) -> int:
    return sum(int(str(t.bytes)) for t in node.types)


def link_between(ranks: Sequence[int], links: Sequence[Link]) -> Link:
    """Returns the nearest tier that connects these ranks."""
    for link in links:
        if not link.ranks or len({rank // link.ranks for rank in ranks}) == 1:
            return link
    return links[-1]


def message_seconds(size: int, machine: Cluster, ranks: int) -> float:
    """Returns the seconds of a message of `size` bytes between any two of so many neighbours."""
    link = link_between(range(ranks), machine.links)
    return link.alpha + link.beta * size


def collective_seconds(node: Node, mesh: Mesh, machine: Cluster) -> float:
    """Returns the seconds of a collective: a ring over the slowest tier of its group.

    If a group spans tiers evenly, an all-reduce is hierarchical: reduce-scatter within the nearest
    tier, all-reduce across, all-gather within.
    """
    if node.op == "permute":
        order: Sequence[int] = node.attrs["order"]
        link = link_between([0, order[0]], machine.links)
        return link.alpha + link.beta * _bytes(node)
    over = group_of(node.attrs)[1]
    group = mesh.groups(over)[0]
    if node.op == "halo":  # with neighbours; the first rank's are as far away as any other's
        link = link_between(group[:2], machine.links)
        return sum(link.alpha + link.beta * size for size in halo_messages(node))
    size = _bytes(node.args[0])
    near = machine.links[0]
    inside = [r for r in group if near.ranks and r // near.ranks == group[0] // near.ranks]
    if node.op == "all_reduce" and 1 < len(inside) < len(group):
        outside = len(group) // len(inside)
        far = link_between(group, machine.links)
        part = -(-size // len(inside))
        within = ring_seconds("reduce_scatter", len(inside), size, near)
        across = ring_seconds("all_reduce", outside, part, far)
        return within + across + ring_seconds("all_gather", len(inside), part, near)
    return ring_seconds(node.op, len(group), size, link_between(group, machine.links))


def ring_seconds(op: str, ranks: int, size: int, link: Link) -> float:
    """Returns the seconds of a collective of `size` bytes on a ring of ranks."""
    waits = (ranks - 1) * (2 if op == "all_reduce" else 1)
    return waits * link.alpha + sent_bytes(op, ranks, size) * link.beta
