"""Calls, fusion groups, branches, loops, and calls to the framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import RuleError, StackError
from stack.ir.axes import Rule, names, parse_rule, plain
from stack.ir.elementwise_ops import EVERYWHERE
from stack.ir.node import Node
from stack.ir.ops import Applied, OpDef, Site, define
from stack.ir.relation import FullRelation, Relation, related
from stack.ir.types import BOOL, TensorType, TupleType, Type


def result_type(types: tuple[Type, ...]) -> Type:
    """Returns the type of a node that returns the results of its block: the type of a single
    result, or a tuple type of several. Raises RuleError for a result that is itself a tuple.
    """
    items = tuple(t for t in types if isinstance(t, TensorType))
    if len(items) != len(types):
        raise RuleError("a block returns tensors; pick items of tuples first")
    return items[0] if len(items) == 1 else TupleType(items)


def _match_params(site: Site, block: int, args: tuple[Node, ...]) -> None:
    expected = [p.type for p in site.blocks[block].params]
    if [a.type for a in args] != expected:
        raise site.fail(f"block {block} takes ({', '.join(map(str, expected))})")


def _call_infer(site: Site) -> Type:
    if len(site.blocks) != 1:
        raise site.fail("has one block")
    _match_params(site, 0, site.args)
    return result_type(site.blocks[0].type)


def _cond_infer(site: Site) -> Type:
    if not site.blocks or site.args[0].tensor.rank or site.args[0].dtype.kind not in "biu":
        raise site.fail("operand 0 is a bool or integer scalar that picks a block")
    for i in range(len(site.blocks)):
        _match_params(site, i, site.args[1:])
        if site.blocks[i].type != site.blocks[0].type:
            raise site.fail(
                f"block {i} returns {site.blocks[i].type}, block 0 {site.blocks[0].type}"
            )
    return _checked(site, site.blocks[0].type)


def _while_infer(site: Site) -> Type:
    if len(site.blocks) != 2:
        raise site.fail("has two blocks: condition and body")
    for i in range(2):
        _match_params(site, i, site.args)
    test = site.blocks[0].type
    if test != (TensorType(BOOL, ()),):
        raise site.fail(f"the condition block returns bool[], not {test}")
    if site.blocks[1].type != tuple(a.type for a in site.args):
        raise site.fail("the body returns the types that it takes")
    return _checked(site, site.blocks[1].type)


def _checked(site: Site, types: tuple[Type, ...]) -> Type:
    """Returns the type of control flow; each result has the type of the operand that it reuses."""
    for i, number in enumerate(map(int, site.attrs.get("reuses", ()))):
        if number >= 0 and site.args[number].type != types[i]:
            raise site.fail(f"operand {number}, which it reuses, is not of the type of result {i}")
    return result_type(types)


def _item_infer(site: Site) -> Type:
    source = site.args[0].type
    index: int = site.attrs["index"]
    if not isinstance(source, TupleType) or not 0 <= index < len(source.items):
        raise site.fail(f"has no item {index}")
    return source.items[index]


def _opaque_infer(site: Site) -> Type:
    if site.hint is None:
        raise site.fail("the result type must be given")
    return site.hint


def _custom_infer(site: Site) -> Type:
    """Infers the type of a `custom` node from the results of its block. Raises RuleError if the
    node's axis rule gives other shapes. Without a block, it is inferred as for an `opaque` node.
    """
    if not site.blocks:
        return _opaque_infer(site)
    type_ = _call_infer(site)
    if "rule" in site.attrs:
        made = [t.shape for t in (type_.items if isinstance(type_, TupleType) else (type_,))]
        if site.shapes() != made:
            raise site.fail(f"its rule {site.attrs['rule']!r} and its block disagree on {made}")
    return type_


def _custom_rule(node: Applied) -> Rule | None:
    return parse_rule(node.attrs["rule"]) if "rule" in node.attrs else None


def _run_block(
    space: Any, node: Node, run: Callable[..., tuple[Any, ...]], *args: Any
) -> tuple[Any, ...] | Any:
    if not node.blocks:
        raise StackError(f"operator {node.attrs['name']!r} has no decomposition here")
    results = run(node.blocks[0], args)
    return results if isinstance(node.type, TupleType) else results[0]


def _item_relation(node: Node) -> Relation:
    axes = plain(names(node.tensor.rank))
    return related(Rule((axes,), (axes,)), [node.shape], [node.shape], {})


def _control(
    name: str, doc: str, infer: Callable[[Site], Type], kind: str = "control", **more: Any
) -> None:
    define(OpDef(name, doc, kind, infer, **more))


_control(
    "item",
    "one result of a node with several",
    _item_infer,
    "item",
    relation=_item_relation,
    attrs=("index: int",),
    arity=1,
    levels=EVERYWHERE,
)
_control(
    "call",
    "run a named block; with `once`, its results are the same for every call of the program",
    _call_infer,
    attrs=("name: str", "once?"),
)
_control(
    "fusion",
    "one group of ops; `kind` names what runs it",
    _call_infer,
    "group",
    attrs=("kind: str", "name?", "why?", "at?", "schedule?", "refused?", "padded?", "updates?"),
)
_control(
    "cond",
    "run the block with number `operand 0` (false is 0) on the other operands; `reuses`: the"
    " operand in whose memory each result is",
    _cond_infer,
    attrs=("reuses?",),
    at_least=1,
)
_control(
    "while",
    "repeat the body while the condition is true; `trip_count`: number of iterations, if known;"
    " `reuses`: the operand in whose memory each result is",
    _while_infer,
    attrs=("trip_count?: int", "reuses?"),
)
define(
    OpDef(
        "opaque",
        "call the framework for an op without a lowering; counted as a fallback",
        "foreign",
        _opaque_infer,
        attrs=("target: str", "call", "effect?", "token?"),
    )
)
define(
    OpDef(
        "custom",
        "a hosted operator, by name; its block is its decomposition",
        "foreign",
        _custom_infer,
        evaluate=_run_block,
        rule=_custom_rule,
        # its rule gives shapes; an element may depend on elements that the rule does not name
        relation=lambda node: FullRelation(tuple(a.shape for a in node.args)),
        attrs=("name: str", "params?", "rule?: str", "kernel?: str"),
    )
)
