"""Shrink a function that shows an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stack.errors import StackError
from stack.ir.builder import param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import TensorType
from stack.ir.verifier import verify
from stack.rewrite.engine import Replacement, replace


def reduce(func: Func, shows: Callable[[Func], bool]) -> Func:
    """Shrinks a function while `shows` is true for it.

    Tries the largest step first: keep one of several results, make an intermediate value the
    result, replace a value by one of its operands, replace a value by a parameter. Names and source
    lines are kept.
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
    """Replaces a node of a block by a new parameter, so that what computed it can be removed."""
    name = body.names.get(node, node.op)
    if any(p.attrs["name"] == name for p in body.params):
        name += "_in"
    read = param(name, node.type)
    wider = Block([*body.params, read], body.results, body.names, body.locs)
    return replace(wider, {node: Replacement(read)})


def _with(func: Func, body: Block) -> Func:
    """Returns `func` with another body, without the parameters that this body does not use."""
    used = {a for n in body.nodes for a in n.args} | set(body.results)
    used.update(c for n in body.nodes for b in n.blocks for c in b.captures)
    params = [p for p in body.params if p in used]
    return Func(func.name, Block(params, body.results, body.names, body.locs), func.level)
