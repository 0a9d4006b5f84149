"""Turn dependent sums over a gathered axis into one stream, so that one ring pass is enough.

A softmax computes a maximum, a sum and a matmul, and each depends on the one before. The stream
pass derives how partial results are corrected. Here it sees only the sums, and the nodes between
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.ir.builder import param, remade
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline, topological
from stack.ir.traits import is_stream
from stack.passes.sharding.retype import mapped
from stack.passes.sharding.strategies.ring_analysis import RingAnalysis, reduced_axes
from stack.passes.stream import Stream
from stack.rewrite import Log, Pipeline


def chained(func: Func, axis: str, log: Log) -> Func:
    """Returns a rank's program with chains of sums over a gathered axis as streams."""
    turns = RingAnalysis(func, axis)
    done: dict[Node, Node] = {p: p for p in func.params}
    for ends in _chains(turns):
        names = ", ".join(f"%{func.body.names.get(n, n.op)}" for n in ends)
        inner = _between(turns, ends)
        leaves = [a for n in inner for a in n.args if a not in inner and not is_inline(a)]
        leaves = list(dict.fromkeys(leaves))
        params = {leaf: param(f"p{i}", leaf.type) for i, leaf in enumerate(leaves)}
        copy = remade(ends, params)
        few = Func("chain", Block(list(params.values()), [copy[n] for n in ends]), func.level)
        made = Pipeline([Stream(min_axis=1)]).run(few).func
        if sum(map(is_stream, made.nodes)) != 1:
            log.note(f"{names} do not form one stream: each gets its own ring")
            continue
        log.note(f"{names} are one stream")
        done = remade(leaves, done)
        known = {p: done[leaf] for leaf, p in params.items()}
        found = remade(made.results, known)
        done.update((end, found[r]) for end, r in zip(ends, made.results, strict=True))
    done = remade(func.results, done)
    return Func(func.name, mapped(func.body, done), func.level)


def _chains(turns: RingAnalysis) -> list[list[Node]]:
    """Returns lists of at least two reductions over a gathered dim, in program order. Each depends
    on an earlier one of its list, and on nothing else that is computed from these."""
    chains: list[list[Node]] = []
    for end in turns.ends:
        if not reduced_axes(end):
            chains.append([])
        elif chains and chains[-1] and _follows(turns, chains[-1], end):
            chains[-1].append(end)
        else:
            chains.append([end])
    return [chain for chain in chains if len(chain) > 1]


def _follows(turns: RingAnalysis, chain: Sequence[Node], end: Node) -> bool:
    """True if reduction `end` depends on a reduction of `chain`, and every value between that
    depends on the chain can be computed inside of one stream."""
    inner = _between(turns, [*chain, end])
    later = _after(turns.func, chain)
    leaves = {a for n in inner for a in n.args if a not in inner}
    reads = {a for n in inner if n is not end for a in n.args}
    return leaves.isdisjoint(later) and not reads.isdisjoint(chain)


def _between(turns: RingAnalysis, ends: Sequence[Node]) -> set[Node]:
    """Returns the nodes that compute a chain from the gathers: the reductions `ends`, nodes along
    the gathered axis, and nodes computed from the reductions alone."""
    made = set(ends)
    for node in turns.func.nodes:
        args = [a for a in node.args if not is_inline(a)]
        if args and made.issuperset(args):
            made.add(node)
    taken = made.union(turns.reached).difference(turns.sources)
    return set(topological(ends, taken.__contains__))


def _after(func: Func, nodes: Iterable[Node]) -> set[Node]:
    found = set(nodes)
    for node in func.nodes:
        if not found.isdisjoint(node.args):
            found.add(node)
    return found
