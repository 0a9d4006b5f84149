"""Checks of a run: every stage computes the same as the program, and no byte of the arena is
overwritten while it is live.

The check of a memory plan shares no code with pass `memory`. It follows values through views using
only the plan, step by step as the program runs, and ignores the live ranges that the pass computed.

Programs whose results differ from run to run are refused, since nothing can be compared with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.memory import one_before
from stack.ir.node import Block, Node, deps
from stack.ir.traits import is_item, maker
from stack.rewrite.truth import Arrays, Truth, Verdict
from stack.run.coverage import walk
from stack.run.record import Stage

Result = tuple[Node, int]
_VIEWS = ("reshape", "item")


@dataclass(frozen=True)
class Overlap:
    """A fault of the memory plan: result `second` is written to a byte of `first`, which is still
    read later.
    """

    first: str
    second: str
    byte: int

    def __str__(self) -> str:
        text = f"{self.second} is written over {self.first}, which is read later"
        return f"{text}: both have byte {self.byte} of the arena"


def overlaps(func: Func) -> list[Overlap]:
    """Finds faults of a memory plan: all results that a function overwrites before their last use,
    including those in the bodies of loops and branches.
    """
    found: list[Overlap] = []
    pending = [func.body]
    while pending:
        block = pending.pop()
        found += _in_block(block)
        for node in block.nodes:
            pending += [b for b in node.blocks if not b.is_open and node.op != "kernel"]
    return found


def _in_block(block: Block) -> list[Overlap]:
    shows: dict[Node, set[Result]] = {}  # the results in the arena that a value may alias
    last: dict[Result, int] = {}
    end = len(block.nodes)
    for step, node in enumerate(block.nodes):
        read = set[Result]().union(*(shows.get(a, set[Result]()) for a in node.args))
        last.update(dict.fromkeys(read, step))
        shows[node] = _shown(node, shows)
    for result in block.results:
        last.update(dict.fromkeys(shows.get(result, ()), end))
    live: list[tuple[Result, range]] = []
    found: list[Overlap] = []
    for step, node in enumerate(block.nodes):
        for result, place in _written(node):
            for other, held in live:
                shared = range(max(place.start, held.start), min(place.stop, held.stop))
                if shared and other != result and last.get(other, -1) >= step:
                    names = (_name(block, other), _name(block, result))
                    found.append(Overlap(*names, shared.start))
            live.append((result, place))
    return found


def _shown(node: Node, shows: dict[Node, set[Result]]) -> set[Result]:
    source = one_before(node)
    if source is not None:
        return shows.get(source, set())
    if node.op == "item":
        index = int(node.attrs["index"])
        return {r for r in shows.get(node.args[0], ()) if r[0] is not node.args[0] or r[1] == index}
    if node.op in _VIEWS:
        return shows.get(node.args[0], set())
    return {result for result, _ in _written(node)}


def _written(node: Node) -> list[tuple[Result, range]]:
    """Returns each result that a node writes to the arena, the memory of all intermediates, with
    its range of bytes. Empty for a node that updates an operand in place.
    """
    places = () if "updates" in node.attrs else node.attrs.get("at") or ()
    sizes = [t.bytes for t in node.types]
    return [
        ((node, i), range(at, at + size))
        for i, (at, size) in enumerate(zip(places, sizes))
        if at >= 0 and isinstance(size, int)
    ]


def _name(block: Block, result: Result) -> str:
    node, index = result
    name = f"%{block.names.get(node, node.op)}"
    return name if len(node.types) == 1 else f"{name}.{index}"


def check_stages(stages: Sequence[Stage], given: Arrays = ()) -> Iterator[Verdict]:
    """Interprets the IR of every stage on several kinds of inputs and compares it with the first.

    Also checks the memory plan of every stage. A stage whose parameters differ, as after weights
    are packed, cannot run on the same inputs: it is not compared, and later stages are compared
    with it. `given`: the program's own arguments, which are checked first.
    """
    funcs = [(s, s.func) for s in stages if s.func is not None]
    truth = Truth(funcs[0][1], given=given)
    for stage, func in funcs[1:]:
        truth.allow(stage.inexact)
        bound = func.bind(truth.sizes) if func.symbols else func
        if [p.type for p in bound.params] != [p.type for p in truth.func.params]:
            truth = Truth(func)
            continue
        for kind in truth.kinds:
            yield truth.verdict(stage.name, kind, bound)
        for overlap in overlaps(func):
            yield Verdict(stage.name, "memory", 0.0, str(overlap))


WAY_OUT = "for a module in training mode, call `.eval()`"


def check_draws(func: Func) -> None:
    """Raises UsageError if results depend on random draws or other unrepeatable ops."""
    found = [f"{n.attrs['target']} at {_line(func, n)}" for n in _drawn(func)]
    if found:
        named = ", ".join(dict.fromkeys(found))
        raise UsageError(f"the program uses random draws: {named}. Two runs differ; {WAY_OUT}")


def _drawn(func: Func) -> list[Node]:
    """Returns the nodes with side effects, such as random draws, whose values affect the program.

    Those are values that are results of the function, or that a node without side effects reads.
    Tokens, which only order side effects, do not count.
    """
    nodes = walk(func)
    own = [n for n in nodes if not _is_token(n)]
    read = {d for n in own if "effect" not in n.attrs for d in deps(n)}
    return [n for n in own if "effect" in n.attrs and (n in read or n in func.results)]


def _is_token(node: Node) -> bool:
    """True if a node is the token of an op with side effects, which only orders these.

    The token is the last result of such an op.
    """
    made = maker(node)
    if "token" not in made.attrs:
        return False
    return node.attrs["index"] == len(made.types) - 1 if is_item(node) else len(node.types) == 1


def _line(func: Func, node: Node) -> str:
    return ", ".join(func.body.locs.get(node, ())) or "no source line"
