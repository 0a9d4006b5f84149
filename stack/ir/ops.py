"""The op table: what an op is, in one record. Levels are sets of these names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

from stack.errors import RuleError
from stack.ir.algebra import NOTHING, Algebra
from stack.ir.alike import once_alike
from stack.ir.axes import Index, Rule
from stack.ir.data import Data
from stack.ir.dim import Dim, Expr
from stack.ir.node import Block, Node, plain_attr
from stack.ir.region import Region, element
from stack.ir.relation import Everything, Linear, Relation, Windows, related
from stack.ir.types import Type, unsharded

LEVELS = ("tensor", "tile", "loop")
BLOCK_KINDS = ("control", "group", "foreign")  # kinds of ops that may hold blocks


def _is_dim(value: Any) -> bool:
    return type(value) is int or isinstance(value, Expr)


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(test, cast("tuple[Any]", value)))


# what an attribute may hold: how messages call it, and a test
ATTRIBUTES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "any": ("a value", lambda value: True),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "data": ("an array", lambda value: isinstance(value, Data)),
    "dim": ("a size", _is_dim),
    "dims": ("a list of sizes", _all(_is_dim)),
    "int": ("an integer", lambda value: type(value) is int),
    "ints": ("a list of integers", _all(lambda value: type(value) is int)),
    "str": ("a text", lambda value: isinstance(value, str)),
}


class Applied(Protocol):
    """An op on operands: a node, or one that is being made and has no type yet."""

    @property
    def op(self) -> str: ...
    @property
    def args(self) -> tuple[Node, ...]: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Site:
    """What type inference sees of a node that is being made."""

    op: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Any]
    blocks: tuple[Block, ...]
    hint: Type | None

    def fail(self, why: str) -> RuleError:
        shown = ", ".join(str(a.type) for a in self.args)
        return RuleError(f"{self.op}({shown}): {why}")

    def shapes(self) -> list[tuple[Dim, ...]]:
        """Shapes of the results, by an axis rule that does not look at them. Raises RuleError."""
        rule = cast("Callable[[Applied], Rule]", OPS[self.op].rule)
        try:
            return rule(self).output_shapes([a.shape for a in self.args])
        except RuleError as error:
            raise self.fail(str(error)) from error

    def shape(self) -> tuple[Dim, ...]:
        """Shape of the one result, by the axis rule."""
        (shape,) = self.shapes()
        return shape


@dataclass(frozen=True)
class OpDef:
    """One op: signature, axis rule, meaning and cost.

    Rules and relations follow from what a node is, see `stack.ir.alike`, and look at no operand but
    for its type.

    Attributes:
        infer: type of the result from a `Site`; raises RuleError.
        rule: axis rule of a node, or None where the op has no axes (constants, calls).
        windows: how dims that the rule marks `^` or `~` are read.
        beyond: what windows read outside of their dims, where a part of a dim, and what is beyond
            it, may stand for the whole: "zero" (or nothing), or "operand", the last one.
        relation: access relation of a node, where no rule states it.
        restated: attributes with which a node would state another rule over its axes; None where
            it could not. Those of elementwise ops say nothing of axes.
        algebra: what holds of it whatever its operands are; of a node, where attributes decide.
        evaluate: `(space, node, *arrays) -> array` over a NumPy-like array namespace.
        kind: "elementwise", "movement", "reduction", "contraction", "leaf" (known where it
            stands), "input" (named from outside), "control" (blocks that run one after the other),
            "group" (blocks that run as one step), "item", "memory" or "foreign"; what fusion and
            backends dispatch on first.
        folds: the kind of reduction along the axes that the rule drops, of a node: in any order,
            and from any parts. None where there is no such.
        aliases: whether the result is the operand's memory, of another shape.
        spelled: `(builder, node) -> node`, with the ops that every backend has; for `decompose`.
        flops: scalar operations for each output element (each reduced element for reductions).
        operations: scalar operations of a node, where they do not follow from `flops` and the rule.
        attrs: what it takes, as "axes: ints"; the kinds are those of `ATTRIBUTES`, a name alone
            takes anything, a "?" after the name marks an optional one.
        arity: number of operands, None for any.
        at_least: the fewest operands, where any number is taken.
        levels: where it may appear.
        closed: whether its blocks see nothing outside.
    """

    name: str
    doc: str
    kind: str
    infer: Callable[[Site], Type]
    evaluate: Callable[..., Any] | None = None
    rule: Callable[[Node], Rule | None] | None = None
    windows: Callable[[Node], Windows] | None = None
    beyond: str = ""
    relation: Callable[[Node], Relation] | None = None
    restated: Callable[[Node, Rule], Mapping[str, Any]] | None = None
    algebra: Algebra | Callable[[Node], Algebra] = NOTHING
    folds: Callable[[Node], str] | None = None
    aliases: bool = False
    spelled: Callable[[Any, Node], Node] | None = None
    flops: float = 0
    operations: Callable[[Node], Dim] | None = None
    attrs: tuple[str, ...] = ()
    arity: int | None = None
    at_least: int = 0
    levels: frozenset[str] = field(default_factory=lambda: frozenset({"tensor"}))
    closed: bool = True

    @property
    def is_view(self) -> bool:
        """Whether it shows elements of one operand at other places, as an index map tells."""
        return self.kind == "movement" and self.arity == 1

    @property
    def is_whole_view(self) -> bool:
        """Whether it is a view without windows: all are shown but where axes meet themselves."""
        return self.is_view and self.windows is None

    @cached_property
    def signature(self) -> dict[str, tuple[str, bool]]:
        """Attributes by name: the kind of value, and whether it must be there."""
        table: dict[str, tuple[str, bool]] = {}
        for text in self.attrs:
            name, _, kind = text.partition(":")
            table[name.rstrip("?")] = (kind.strip() or "any", not name.endswith("?"))
        return table


OPS: dict[str, OpDef] = {}


def define(op: OpDef) -> OpDef:
    """Enter an op in the table; a name can be taken once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is defined already")
    OPS[op.name] = op
    return op


def lookup(name: str) -> OpDef:
    """The record of an op, or a RuleError that suggests near names."""
    op = OPS.get(name)
    if op is None:
        near = difflib.get_close_matches(name, OPS, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RuleError(f"unknown op {name!r}{hint}")
    return op


def check_signature(
    op: OpDef, args: Sequence[Node], attrs: Mapping[str, Any], blocks: Sequence[Block] = ()
) -> None:
    """Number of operands, names and kinds of attributes; raises RuleError."""
    if op.arity is not None and len(args) != op.arity:
        raise RuleError(f"{op.name} takes {op.arity} operand(s), got {len(args)}")
    if len(args) < op.at_least:
        raise RuleError(f"{op.name} takes at least {op.at_least} operand(s), got {len(args)}")
    if blocks and op.kind not in BLOCK_KINDS:
        raise RuleError(f"{op.name} takes no blocks, got {len(blocks)}")
    for name, value in attrs.items():
        if name not in op.signature:
            known = ", ".join(op.signature) or "none"
            raise RuleError(f"{op.name} has no attribute {name!r}; it takes: {known}")
        wanted, test = ATTRIBUTES[op.signature[name][0]]
        if not test(value):
            raise RuleError(f"attribute {name!r} of {op.name} is {wanted}, not {value!r}")
    for name, (_, is_needed) in op.signature.items():
        if is_needed and name not in attrs:
            raise RuleError(f"{op.name} needs attribute {name!r}")


def infer_type(
    name: str,
    args: Sequence[Node],
    attrs: Mapping[str, Any],
    blocks: Sequence[Block] = (),
    hint: Type | None = None,
) -> Type:
    """Type of a node; raises RuleError when the op does not allow these operands."""
    op = lookup(name)
    try:
        given = {k: plain_attr(k, v) for k, v in attrs.items()}
        check_signature(op, args, given, blocks)
        return unsharded(op.infer(Site(name, tuple(args), given, tuple(blocks), hint)))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        what = f"missing {error}" if isinstance(error, LookupError) else f"{error}"
        raise RuleError(f"{name} does not take these operands or attributes: {what}") from error


def algebra_of(node: Node) -> Algebra:
    """What holds of a node whatever its operands are."""
    facts = lookup(node.op).algebra
    return facts if isinstance(facts, Algebra) else facts(node)


def is_view(node: Node) -> bool:
    """Whether a node shows elements of its operand at other places, as an index map tells."""
    return lookup(node.op).is_view


@once_alike
def is_whole_view(node: Node) -> bool:
    """Whether a node is a view that leaves no element out: broadcast, reshape, transpose."""
    rule = rule_of(node) if lookup(node.op).is_whole_view else None
    if rule is None:
        return False
    read = [name for axis in rule.inputs[0] for name in axis.names]
    return len(set(read)) == len(read)


@once_alike
def rule_of(node: Node) -> Rule | None:
    """The axis rule of a node."""
    op = lookup(node.op)
    return op.rule(node) if op.rule else None


def restated(node: Node, rule: Rule) -> dict[str, Any] | None:
    """Attributes with which the op of a node states another rule over the node's axes.

    So a node is made again on operands whose axes are fewer, more, or in another order; of an op
    with windows, in another order alone. None where the op has no such form.
    """
    op = lookup(node.op)
    if op.restated is not None:
        return {**node.attrs, **op.restated(node, rule)}
    return dict(node.attrs) if op.kind == "elementwise" else None


def relation_of(node: Node) -> Relation:
    """The access relation of a node: its own, that of its axis rule, or everything."""
    return _linear(node) or _relation(node)


@once_alike
def _linear(node: Node) -> Linear | None:
    """The relation of a node, unless it is of another kind: those hold nodes."""
    made = _relation(node)
    return made if isinstance(made, Linear) else None


def _relation(node: Node) -> Relation:
    op = lookup(node.op)
    if op.relation is not None:
        return op.relation(node)
    operands = tuple(a.shape for a in node.args)
    results = tuple(t.shape for t in node.types)
    rule = rule_of(node)
    if rule is None:
        return Everything(operands, results)
    return related(rule, operands, results, op.windows(node) if op.windows else {})


def pull(node: Node, index: Index, reduced: Mapping[str, Dim] | None = None) -> list[Index]:
    """Which element of every operand the output element `index` reads.

    Index entries are size expressions over loop symbols. `reduced` names an index for every
    reduced axis of the rule. An index outside of an operand's shape (of `pad`, `concat`, `conv`)
    means that the operand is not read. Raises RuleError for ops whose reads no index map
    describes: those depend on data, or need a whole axis.
    """
    try:
        return relation_of(node).pull(index, reduced or {})
    except RuleError as error:
        raise RuleError(f"{node.op}: {error}") from error


def push(node: Node, operand: int, index: Index) -> list[Region | None]:
    """Which part of every result the element `index` of an operand can reach; None for none."""
    return relation_of(node).push(operand, element(index))


def footprint(node: Node, index: Index, result: int = 0) -> list[Region | None]:
    """Which part of every operand the element `index` of a result may depend on."""
    return relation_of(node).footprint(element(index), result)
