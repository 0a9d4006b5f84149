"""Finds data-dependent nodes of a Dynamo graph: numbers read from tensors, and sizes from them.

A number that is used as a factor, term or bound is compiled, as a tensor without axes. Torch runs
other uses of such numbers, and every op whose result has a data-dependent size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols

from stack.errors import UnsupportedOp
from stack.frameworks.torch_private import MODES, pytree
from stack.frontends.torch.importer.errors import PARTS
from stack.frontends.torch.importer.origins import source_line

ASSUMES = torch.ops.aten._assert_scalar.default

_COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "truediv", "div"}) | _COMPARED
_OF_INTEGERS = frozenset({"and_", "or_", "xor", "lshift", "rshift"})
_OF_NUMBERS = frozenset({"add", "sub", "mul", "neg"})
_WAY_OUT = f"an input or result depends on data; {PARTS}"
_NUMBERS = torch.SymInt | torch.SymFloat | torch.SymBool


def data_dependent(gm: GraphModule) -> set[Node]:
    """Returns the nodes that torch has to run; replaces other data-dependent numbers by tensors."""
    _fix(gm)
    known = _symbols(gm.graph.find_nodes(op="placeholder"))
    # values that a compiled part can neither take nor return
    unknown = {n for n in _inner(gm) if _symbols([n]) - known or _is_untold(n)}
    for node in [n for n in _inner(gm) if n in unknown and _is_whole(n)]:
        _use_tensor(gm, node, unknown)
    found = {n for n in _inner(gm) if n.meta.get("unbacked_bindings") or n in unknown}
    if not found:
        return found
    gm.recompile()
    found -= _compiled_floats(gm, unknown)
    unknown &= found
    for node in _inner(gm):
        reads = node.all_input_nodes
        if any(n in unknown for n in reads) or (
            _is_number(node) and any(n in found for n in reads)
        ):
            found.add(node)
            if _is_number(node):
                unknown.add(node)
    return found


def refuse_data_dependent(gm: GraphModule) -> None:
    """Raise UnsupportedOp with the data-dependent ops, if there are any."""
    found = data_dependent(gm)
    if found:
        raise UnsupportedOp(named_ops(gm, found), _WAY_OUT)


def named_ops(gm: GraphModule, nodes: set[Node]) -> list[tuple[str, tuple[str, ...]]]:
    """Returns names and source lines of the ops among nodes, without arithmetic on numbers."""
    found = [n for n in _inner(gm) if n in nodes and _is_op(n)]
    names = (f".{_name(n)}()" if n.op == "call_method" else _name(n) for n in found)
    return list(zip(names, map(source_line, found), strict=True))


def _is_op(node: Node) -> bool:
    if node.op == "get_attr" or "sym_size" in str(node.target):
        return False
    return not all(map(_is_number, [node, *node.all_input_nodes]))


def _inner(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _fix(gm: GraphModule) -> None:
    """Replaces symbolic numbers by their values, where Dynamo's guards determine the value."""
    unguarded: set[Node] = set()
    for node in _inner(gm):
        if node.meta.get("unbacked_bindings") or not unguarded.isdisjoint(node.all_input_nodes):
            unguarded.add(node)
        value = node.meta.get("example_value")
        is_number = isinstance(value, torch.SymInt) and value.node.expr.is_number
        if is_number and node not in unguarded:
            node.replace_all_uses_with(int(value))  # pyright: ignore[reportArgumentType]
            gm.graph.erase_node(node)


def _is_number(node: Node) -> bool:
    """True if a node of a Dynamo graph returns numbers only, or asserts something about numbers."""
    leaves = pytree.tree_leaves(node.meta.get("example_value"))
    is_number = any(leaf is not None for leaf in leaves) and not any(map(_is_tensor, leaves))
    return is_number or node.target is ASSUMES


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _symbols(nodes: Iterable[Node]) -> set[Any]:
    """Returns the symbols in the numbers of nodes and in the sizes of their tensors."""
    values = pytree.tree_leaves([n.meta.get("example_value") for n in nodes])
    found = [free_symbols(v) for v in values if isinstance(v, torch.Tensor | _NUMBERS)]
    return set[Any]().union(*found)


def _is_untold(node: Node) -> bool:
    """True if a node has readers but no example value, so that its size is unknown."""
    if node.op == "get_attr" or node.target in MODES:
        return False
    return "example_value" not in node.meta and bool(node.users)


def _is_whole(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymInt)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _is_elementwise(node: Node, names: frozenset[str], unknown: set[Node]) -> bool:
    """True if a node is one of the binary operators `names` and its result has a known size.

    `unknown`: the data-dependent nodes, whose sizes are not known.
    """
    is_known = node not in unknown and isinstance(node.meta.get("example_value"), torch.Tensor)
    return is_known and _name(node) in names and len(node.args) == 2 and not node.kwargs


# ---- integers


def _use_tensor(gm: GraphModule, number: Node, unknown: set[Node]) -> None:
    """Makes elementwise ops read an integer as a 0-d tensor, so that torch need not run them."""
    users = [u for u in number.users if _is_elementwise(u, _ARITHMETIC | _OF_INTEGERS, unknown)]
    users = [u for u in users if _other(u, number) is not None]
    twin = _twin(gm, number, {}) if users else None
    if twin is None:
        return
    for user in users:
        held: Any = _other(user, number).meta["example_value"]  # pyright: ignore[reportOptionalMemberAccess]
        given = twin
        is_narrow = held.dim() == 0 and not held.is_floating_point() and held.dtype != torch.bool
        if is_narrow and held.dtype != torch.int64:  # a number does not promote a 0-d tensor
            given = _made(gm, user, "to", (twin, held.dtype))
        user.replace_input_with(number, given)
    _erase(gm, number, unknown)


def _other(user: Node, number: Node) -> Node | None:
    """Returns the tensor operand of an operator besides a number."""
    left, right = user.args
    other = right if left is number else left
    is_tensor = isinstance(other, Node) and isinstance(
        other.meta.get("example_value"), torch.Tensor
    )
    return other if is_tensor else None  # pyright: ignore[reportReturnType]


def _twin(gm: GraphModule, number: Any, made: dict[Node, Any]) -> Any:
    """Inserts a 0-d tensor with the value of an integer node; an int constant is unchanged.

    None if an op that computes the integer has no tensor form. `made`: tensors inserted so far.
    """
    if not isinstance(number, Node):
        return number if isinstance(number, int) else None
    if number in made:
        return made[number]
    if number.op == "call_method" and number.target == "item":
        held: Any = number.args[0]
        if getattr(held.meta.get("example_value"), "dtype", torch.bool) == torch.bool:
            return None
        flat = _made(gm, number, "reshape", (held, ()))
        found = _made(gm, number, "to", (flat, torch.int64))
    elif number.op == "call_function" and _name(number) in _OF_NUMBERS:
        parts = [_twin(gm, a, made) for a in number.args]
        if None in parts:
            return None
        found = _made(gm, number, number.target, tuple(parts))
    else:
        return None
    made[number] = found
    return found


def _made(gm: GraphModule, before: Node, target: Any, args: tuple[Any, ...]) -> Node:
    """Inserts a node before another, with the same source line."""
    with gm.graph.inserting_before(before):
        is_method = isinstance(target, str)
        call = gm.graph.call_method if is_method else gm.graph.call_function
        node = call(target, args)
    values = [a.meta["example_value"] if isinstance(a, Node) else a for a in args]
    first: Any = values[0]
    tensor: Any = next(v for v in values if isinstance(v, torch.Tensor))
    with tensor.fake_mode:
        node.meta = {
            k: v for k, v in before.meta.items() if k in ("stack_trace", "nn_module_stack")
        }
        node.meta["example_value"] = (
            getattr(first, target)(*values[1:]) if is_method else target(*values)
        )
    return node


def _erase(gm: GraphModule, number: Node, unknown: set[Node]) -> None:
    """Erases a node that computes a number, if it has no readers, and then those only it read.

    `unknown`: the data-dependent nodes; erased ones are removed, and only these are erased.
    """
    while not number.users:
        parts = [p for p in number.all_input_nodes if p in unknown]
        gm.graph.erase_node(number)
        unknown.discard(number)
        for part in parts:
            _erase(gm, part, unknown)
        return


# ---- floats, which torch itself converts to tensors


def _compiled_floats(gm: GraphModule, unknown: set[Node]) -> set[Node]:
    """Returns the data-dependent floats that need not be run by torch.

    Those are read only by elementwise ops, and by others of them.
    """
    found: set[Node] = set()
    for node in reversed([n for n in gm.graph.nodes if n in unknown]):
        is_float = isinstance(node.meta.get("example_value"), torch.SymFloat)
        is_made = node.target == "item" or _name(node) in _OF_NUMBERS | {"truediv"}
        if (
            is_float
            and is_made
            and all(
                user in found or _is_elementwise(user, _ARITHMETIC, unknown) for user in node.users
            )
        ):
            found.add(node)
    for node in [n for n in gm.graph.nodes if n in found]:  # operands must be in the set too
        if any(a in unknown and a not in found for a in node.all_input_nodes):
            found.discard(node)
    return found
