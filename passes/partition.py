"""partition: cut a training step into a forward and a backward pass, at the least cost.

The backward pass saves a value of the forward pass, or recomputes it and then needs its operands.
The cheapest choice is a minimum cut of the network of values (as in functorch's partitioner and
Checkmate, Jain et al., MLSys 2020). The costs are those of `training/price.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stack.errors import StackError
from stack.ir import ops
from stack.ir.builder import Builder, make, param
from stack.ir.func import Func
from stack.ir.node import Block, Node, deps, topological, unique_name
from stack.ir.traits import is_input, repeats
from stack.passes.training.joint import Joint
from stack.passes.training.min_cut import INFINITE, SINK, SOURCE, Network
from stack.passes.training.price import Prices
from stack.rewrite.engine import copied
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Partition(Pass):
    """Split a joint graph into two calls, forward and backward, and the values saved in between.

    Attributes:
        results: number of the leading results that belong to the forward pass.
        tangents: number of the trailing parameters that are incoming gradients.
        balance: flops of a matmul that take as long as one byte of traffic; 0 if a matmul always
            goes through memory, and is never computed twice.
        recompute: names of values that the program wants recomputed, if possible (checkpoints).
        inputs: save only inputs, and values that cannot be recomputed.
    """

    results: int = 1
    tangents: int = 0
    balance: float = 0.0
    recompute: tuple[str, ...] = ()
    inputs: bool = False

    def run(self, func: Func, log: Log) -> Func:
        joint = Joint(func, self.results, self.tangents)
        if not joint.gradients or not log.spend(self.name, joint.lines(joint.gradients)):
            return func
        prices = Prices(joint, self.balance, self._is_asked)
        kept = _cheapest(joint, prices)
        _explain(joint, prices, kept, log)
        return _cut(joint, [_as_read(joint, n) for n in kept])

    def _is_asked(self, name: str) -> bool:
        """True if the value of this name should be recomputed in the backward pass: `recompute`
        names it, or the option `inputs` asks for all."""
        return self.inputs or name in self.recompute


def _cheapest(joint: Joint, prices: Prices) -> list[Node]:
    """Returns the values that the backward pass reads from the forward pass, at the least total
    cost: those in a minimum cut. In its network, saving and recomputing a value are one edge
    each."""
    numbers = {node: 2 * i + 2 for i, node in enumerate(joint.open)}
    network = Network(2 * len(numbers) + 2)
    for node, at in numbers.items():
        network.add(SOURCE, at, prices.recompute(node))
        network.add(at, at + 1, prices.keep(node))
        if node in joint.wanted:
            network.add(at + 1, SINK, INFINITE)
        for dep in deps(node):
            network.add(numbers[dep] + 1, at, INFINITE)
    try:
        near = network.source_side()
    except ValueError as error:
        raise StackError(f"@{joint.func.name} has no cut: {error}") from error
    return [n for n, at in numbers.items() if at in near and at + 1 not in near]


def _as_read(joint: Joint, node: Node) -> Node:
    """Follows a saved value through views to its only reader.

    Returns the last of these views, or the value itself if there is none.
    """
    while not is_input(node):
        users = [u for u in joint.users.get(node, ()) if u in joint.forward or u in joint.needed]
        if len(users) != 1 or not ops.is_whole_view(users[0]) or repeats(users[0]):
            break
        if users[0] in joint.late or node in joint.func.results:
            break
        (node,) = users
    return node


def _explain(joint: Joint, prices: Prices, kept: Sequence[Node], log: Log) -> None:
    """Log the saved and the recomputed values, with the cost of either."""
    given = {*kept}
    inside = topological([n for n in joint.open if n in joint.wanted], lambda n: n not in given)
    again = [n for n in inside if not prices.is_free(n)]
    made = [n for n in kept if not is_input(n)]
    log.note(
        f"kept for the backward pass: {_count(kept, made, 'input')},"
        f" {_count(made, (), 'value')} more ({_bytes(sum(map(prices.keep, made)))} of traffic);"
        f" recomputed: {_count(again, (), 'value')} ({_bytes(sum(map(prices.recompute, again)))})"
    )
    for node in made:
        other = _without(node, prices, given - {node})
        how = "read" if prices.in_memory(node) else "write and read"
        log.note(
            f"{joint.name(node)} is kept: {_bytes(prices.keep(node))} to {how}, recomputed {other}",
            joint.lines([node]),
        )
    for node in again:
        keep = prices.keep(node)
        other = f", kept {_bytes(keep)}" if keep < INFINITE else ", as the program says"
        log.note(
            f"{joint.name(node)} is recomputed: {_bytes(prices.recompute(node))}{other}",
            joint.lines([node]),
        )


def _without(node: Node, prices: Prices, given: Iterable[Node]) -> str:
    """Returns, for the log, the bytes that recomputing a value costs if only the values `given` are
    saved: all values recomputed on the way, and saving what they read. "never" if it cannot be
    recomputed."""
    if prices.recompute(node) >= INFINITE:
        return "never"
    known = frozenset(given)
    chain = topological([node], lambda n: n not in known and prices.recompute(n) < INFINITE)
    read = {d for n in chain for d in deps(n)}.difference(chain, known)
    return _bytes(sum(map(prices.recompute, chain)) + sum(map(prices.keep, read)))


def _count(nodes: Sequence[Node], without: Sequence[Node], what: str) -> str:
    count = len(nodes) - len(without)
    return f"{count} {what}" + "s" * (count != 1)


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


# ---- the two calls


def _cut(joint: Joint, kept: Sequence[Node]) -> Func:
    """Returns a call of the forward pass, and one of the backward pass on the saved values."""
    func = joint.func
    builder = Builder()
    builder.names.update(func.body.names)
    builder.locs.update(func.body.locs)
    early = [p for p in func.params if p not in joint.tangents]
    made = [n for n in kept if not is_input(n)]
    results = list(dict.fromkeys([*joint.outputs, *made]))
    forward = _call("forward", Block(early, results, func.body.names, func.body.locs), early)
    values = dict(zip(results, _items(forward, results, builder, func.body), strict=True))
    taken = {str(p.attrs["name"]) for p in func.params}
    counts: dict[str, int] = {}
    inside = {n: param(unique_name(joint.name(n)[1:], taken, counts), n.type) for n in made}
    given = [*kept, *joint.tangents]
    body = Builder()
    gradients = copied(func.body, joint.gradients, {p: p for p in func.params} | inside, body)
    block = Block([inside.get(n, n) for n in given], gradients, body.names, body.locs)
    backward = _call("backward", block, [n if is_input(n) else values[n] for n in given])
    found = _items(backward, joint.gradients, builder, func.body)
    whole = [*(values[n] for n in joint.outputs), *found]
    body_of = Block(func.params, whole, builder.names, builder.locs)
    return Func(func.name, body_of, func.level)


def _call(name: str, block: Block, args: Sequence[Node]) -> Node:
    return make("call", args, {"name": name}, (block,))


def _items(call: Node, old: Sequence[Node], builder: Builder, block: Block) -> list[Node]:
    """Returns the values that a call returns, one for each node in `old`, which they replace; they
    take over the names and source lines. Without a tuple, that is the call itself."""
    builder.names[call] = str(call.attrs["name"])
    if len(old) == 1:
        return [call]
    found = [make("item", (call,), {"index": i}) for i in range(len(old))]
    for item, node in zip(found, old, strict=True):
        builder.names.setdefault(item, block.names.get(node, "") or str(node.attrs.get("name", "")))
        builder.locs.setdefault(item, block.locs.get(node, ()))
    return found
