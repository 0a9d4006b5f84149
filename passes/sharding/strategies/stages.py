"""Pipeline parallelism: split a program of losses and gradients into stages.

The loss is computed through a chain of values, such as the residual stream of a transformer. The
program can be cut at a value that alone connects what comes before it with what comes after.
Backward code belongs to the stage whose values it reads. Each stage has three programs: forward,
gradients of activations, and gradients of weights, which no other stage waits for. Values that cost
no more to compute again than to keep are not passed between programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from stack.errors import UsageError
from stack.ir.builder import param
from stack.ir.cost import cost
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline, topological
from stack.ir.traits import is_contraction, is_input
from stack.rewrite.stream_candidates import streamed
from stack.sim.pipeline import ChunkProgram
from stack.sim.recomputed import sources_of

Place = tuple[str, int]  # F, B or W, and the number of the stage
Weigh = Callable[[Func], float]


def free(_: int) -> float:
    """Returns the work of a message if messages cost nothing."""
    return 0.0


@dataclass(frozen=True)
class Stages:
    """A program in parts.

    Attributes:
        parts: by stage and kind.
        results: for each result of the whole program, the part that computes it, and its name.
    """

    parts: dict[Place, ChunkProgram]
    results: tuple[tuple[Place, str], ...]

    def sent(self) -> dict[str, tuple[Place, tuple[Place, ...]]]:
        """Returns for the name of each value that is sent between stages: the part that computes
        it, and the parts of other stages that read it."""
        makers = {name: place for place, part in self.parts.items() for name in part.makes}
        found: dict[str, tuple[Place, tuple[Place, ...]]] = {}
        for name, maker in makers.items():
            readers = [
                p for p, part in self.parts.items() if name in part.reads and p[1] != maker[1]
            ]
            if readers:
                found[name] = maker, tuple(readers)
        return found


def matmul_flops(func: Func) -> float:
    """Returns the operations of a function's matmuls."""
    return sum(int(str(cost(node).flops)) for node in func.nodes if is_contraction(node))


def stages_of(
    func: Func,
    count: int,
    chain: str = "x",
    balance: float = 0.0,
    weigh: Weigh = matmul_flops,
    send: Callable[[int], float] = free,
) -> Stages:
    """Splits a program whose first result is a loss and whose others are gradients.

    The largest stage, forward and backward, is as small as the values to cut at allow.

    Args:
        func: the program.
        count: number of stages.
        chain: the parameter that the chain of values starts with.
        balance: operations of matmuls in the time of one byte, if the backend builds streams: then
            each part recomputes the scores of attention.
        weigh: returns the work of a part, such as its predicted seconds.
        send: returns the work of a message of so many bytes.

    Raises UsageError if there are too few values to cut at.
    """
    start = next((p for p in func.params if p.attrs["name"] == chain), None)
    if start is None:
        raise UsageError(f"@{func.name} has no parameter %{chain}")
    moving = _reached(func, start)
    forward = [n for n in topological(func.results[:1]) if n in moving]
    inner = streamed(func.nodes, func.results, balance)
    again = {n for n, read in sources_of(func.nodes, inner).items() if n not in read} | inner

    def cut(cuts: Sequence[Node]) -> Stages:
        place = _placed(func, forward, moving, cuts)
        for node in again.difference(cuts, func.results):
            place.pop(node, None)  # its readers recompute it
        return _parts(func, place)

    found = _cuts(forward)
    if len(found) < count - 1:
        raise UsageError(f"{count} stages, but only {len(found)} values to cut at")
    if count == 1:
        return cut(())
    work = [0.0] * (len(found) + 1)
    for (_, stage), part in cut(found).parts.items():
        work[stage] += weigh(part.func)
    # a value is sent forward, and its gradient back
    sent = [0.0, *(2 * send(int(str(n.tensor.bytes))) for n in found), 0.0]
    return cut([found[end - 1] for end in _ends(work, sent, count)])


def _ends(work: Sequence[float], sent: Sequence[float], count: int) -> tuple[int, ...]:
    """Cuts a sequence into `count` runs whose largest sum is the least, and whose other sums are
    about equal; returns where the first `count` - 1 runs end. A run's sum includes `sent` at both
    of its ends.
    """

    @cache
    def best(start: int, count: int) -> tuple[float, float, tuple[int, ...]]:
        if count == 1:
            own = sent[start] + sum(work[start:])
            return own, own**2, ()
        found: list[tuple[float, float, tuple[int, ...]]] = []
        for end in range(start + 1, len(work) - count + 2):
            own = sent[start] + sum(work[start:end]) + sent[end]
            most, squares, ends = best(end, count - 1)
            found.append((max(own, most), own**2 + squares, (end, *ends)))
        return min(found)

    return best(0, count)[2]


def _reached(func: Func, start: Node) -> set[Node]:
    """Returns the node `start`, a parameter, and all nodes that depend on it."""
    found = {start}
    for node in func.nodes:
        if not found.isdisjoint(node.args):
            found.add(node)
    return found


def _cuts(forward: Sequence[Node]) -> list[Node]:
    """Returns the values to cut at: each is the only value that is live where it is computed."""
    order = {node: i for i, node in enumerate(forward)}
    last = dict(order)
    for node in forward:
        for arg in node.args:
            if arg in last:
                last[arg] = order[node]
    found: list[Node] = []
    reach = 0
    for node in forward:
        # no other value may be live here
        if reach <= order[node] < last[node] and not is_input(node):
            found.append(node)
        reach = max(reach, last[node])
    return found


def _placed(
    func: Func, forward: Sequence[Node], moving: set[Node], cuts: Sequence[Node]
) -> dict[Node, Place]:
    """Returns the part (kind and stage) of every node that depends on the parameter that the chain
    starts with. The others are recomputed by the parts that read them."""
    place: dict[Node, Place] = {}
    stage = 0
    for node in forward:
        if not is_input(node):
            place[node] = "F", stage
        stage += node in cuts
    homes = _homes(func, place)
    for node in func.nodes:
        if node not in moving or node in place:
            continue
        # a stage reads the values that it received as its own
        read = [place[a][1] + (a in cuts) for a in node.args if a in place]
        if read:  # nodes of inputs alone are computed by their readers
            place[node] = "W", min([*read, *(homes[a] for a in node.args if a in homes)])
    _part_weights(func, place)
    return place


def _homes(func: Func, place: dict[Node, Place]) -> dict[Node, int]:
    """Returns the stage of each parameter that a single stage reads forward, directly or by a view.

    Nodes outside `place` that are computed from such parameters get the first of their stages.
    """
    found: dict[Node, set[int]] = {}
    for node in reversed(func.nodes):
        own = {place[node][1]} if node in place else found.get(node, set[int]())
        for arg in node.args:
            found.setdefault(arg, set()).update(own)
    homes = {p: min(found[p]) for p in func.params if len(found.get(p, ())) == 1}
    for node in func.nodes:
        inner = [homes[a] for a in node.args if a in homes]
        if node not in place and inner:
            homes[node] = min(inner)
    return homes


def _part_weights(func: Func, place: dict[Node, Place]) -> None:
    """Divides the nodes of the backward pass: B computes what other stages wait for, W the rest,
    which are gradients of weights."""
    needed: set[Node] = set()
    for node in reversed(func.nodes):
        if place.get(node, ("F", 0))[0] == "F":
            continue
        for arg in node.args:
            if place.get(arg, ("F", 0))[0] == "W":
                is_sent = place[arg][1] != place[node][1]
                if is_sent or node in needed:
                    needed.add(arg)
    for node in needed:
        place[node] = "B", place[node][1]


def _parts(func: Func, place: dict[Node, Place]) -> Stages:
    """Returns the programs of all parts, with names for the values sent between them."""
    numbers = {node: f"v{i}" for i, node in enumerate(func.nodes)}
    results = [r for r in func.results if r in place]
    if len(results) != len(func.results):
        raise UsageError(f"a result of @{func.name} does not depend on the batch")
    readers: dict[Node, set[Place]] = {}
    for place_ in sorted(set(place.values())):
        for node in _needs(func, place, place_):
            readers.setdefault(node, set()).add(place_)
    parts: dict[Place, ChunkProgram] = {}
    for at in sorted(set(place.values())):
        own = [n for n in func.nodes if place.get(n) == at]
        made = [n for n in own if readers.get(n) or n in results]
        parts[at] = _part(func, at, place, made, numbers)
    return Stages(parts, tuple((place[r], numbers[r]) for r in results))


def _needs(func: Func, place: dict[Node, Place], at: Place) -> Iterable[Node]:
    """Returns values of other parts that a part reads, directly or through recomputed nodes."""
    own = [n for n in func.nodes if place.get(n) == at]
    inside = topological(own, lambda n: n not in place or place[n] == at)
    return dict.fromkeys(a for n in inside for a in n.args if place.get(a, at) != at)


def _part(
    func: Func, at: Place, place: dict[Node, Place], made: Sequence[Node], numbers: dict[Node, str]
) -> ChunkProgram:
    reads: list[str] = []
    params: list[Node] = []
    done: dict[Node, Node] = {}

    def inside(node: Node) -> bool:
        return place.get(node, at) == at and not is_input(node)

    for node in topological(made, inside):
        for arg in (*node.args,):
            if arg not in done and not inside(arg) and not is_inline(arg):
                reads.append(str(arg.attrs["name"]) if is_input(arg) else numbers[arg])
                params.append(param(reads[-1], arg.type))
                done[arg] = params[-1]
        args = [done.get(a, a) for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    locs = {done[n]: lines for n, lines in func.body.locs.items() if n in done}
    body = Block(params, [done[n] for n in made], {}, locs)
    name = f"{at[0]}{at[1]}"
    return ChunkProgram(Func(name, body, func.level), tuple(reads), tuple(numbers[n] for n in made))
