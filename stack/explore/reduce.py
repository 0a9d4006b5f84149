"""A smaller function that still shows an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stack.errors import StackError
from stack.ir.builder import param
from stack.ir.node import Block, Func, Node
from stack.ir.types import TensorType
from stack.ir.verifier import verify
from stack.rewrite.engine import Replacement, replace


def reduce(func: Func, shows: Callable[[Func], bool]) -> Func:
    """Cut a function down for as long as it shows what it is reduced for.

    Steps are tried in order, the largest first: one result of several, a value in the middle as
    the result, an operand in place of what is computed of it, a parameter in place of a value.
    Each keeps names and source lines.
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(func):
            if _size(candidate) < _size(func) and _is_right(candidate) and shows(candidate):
                func, smaller = candidate, True
                break
    return func


def _size(func: Func) -> tuple[int, int, int]:
    return len(func.nodes), len(func.results), len(func.params)


def _is_right(func: Func) -> bool:
    try:
        verify(func)
    except StackError:
        return False
    return True


def _smaller(func: Func) -> Iterator[Func]:
    body = func.body
    if len(body.results) > 1:
        for result in dict.fromkeys(body.results):
            yield _with(func, Block(body.params, [result], body.names, body.locs))
    nodes = [n for n in reversed(body.nodes) if isinstance(n.type, TensorType)]
    for node in nodes:
        if node not in body.results:
            yield _with(func, Block(body.params, [node], body.names, body.locs))
    for node in nodes:
        for arg in node.args:
            if arg.type == node.type:
                yield _with(func, replace(body, {node: Replacement(arg)}))
    for node in nodes:
        if node.op != "const":
            yield _with(func, _reading(body, node))


def _reading(body: Block, node: Node) -> Block:
    """The body with a parameter in the place of a node."""
    name = body.names.get(node, node.op)
    if any(p.attrs["name"] == name for p in body.params):
        name += "_in"
    read = param(name, node.type)
    wider = Block([*body.params, read], body.results, body.names, body.locs)
    return replace(wider, {node: Replacement(read)})


def _with(func: Func, body: Block) -> Func:
    """A function of this body, without parameters that nobody reads."""
    used = {a for n in body.nodes for a in n.args} | set(body.results)
    used.update(c for n in body.nodes for b in n.blocks for c in b.captures)
    params = [p for p in body.params if p in used]
    return Func(func.name, Block(params, body.results, body.names, body.locs), func.level)
