"""The op table: one record describes one op. Each level is a set of op names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol, cast

import stack.plugins as plugins
from stack.errors import RuleError
from stack.ir.algebra import NOTHING, Algebra
from stack.ir.axes import Index, Rule
from stack.ir.data import Data
from stack.ir.dim import Dim, Expr
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Block, Node, plain_attr
from stack.ir.region import Region, element
from stack.ir.relation import FullRelation, Linear, Relation, Windows, related
from stack.ir.types import Type, unsharded

LEVELS = ("tensor", "tile", "loop")
BLOCK_KINDS = ("control", "group", "foreign")  # kinds of ops that may hold blocks


def _is_dim(value: Any) -> bool:
    return type(value) is int or isinstance(value, Expr)


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(test, cast("tuple[Any]", value)))


# kinds of attribute values: a name for error messages, and a test
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
    """An op with its operands: a node, or a node under construction that has no type yet."""

    @property
    def op(self) -> str: ...
    @property
    def args(self) -> tuple[Node, ...]: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Site:
    """The input of type inference: a node under construction."""

    op: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Any]
    blocks: tuple[Block, ...]
    hint: Type | None

    def fail(self, why: str) -> RuleError:
        shown = ", ".join(str(a.type) for a in self.args)
        return RuleError(f"{self.op}({shown}): {why}")

    def shapes(self) -> list[tuple[Dim, ...]]:
        """Shapes of the results, from an axis rule that ignores the results. Raises RuleError."""
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
    """One op: signature, axis rule, semantics and cost.

    Rules and relations depend only on the node itself and on the types of its operands, so
    equivalent nodes share them (see `stack.ir.equivalence`).

    Attributes:
        infer: type of the result from a `Site`; raises RuleError.
        rule: axis rule of a node, or None for ops without axes (constants, calls).
        windows: how the dims that the rule marks `^` or `~` are read.
        beyond: the value that windows read outside of a dim, if a part of the dim together with
            that value may replace the whole dim: "zero" (or nothing), or "operand", the last
            operand.
        relation: access relation of a node, for ops that an axis rule cannot describe.
        restated: attributes that give the node another rule over its axes; None if there are none.
            Attributes of elementwise ops do not refer to axes.
        algebra: algebraic facts that hold for all operands; a function of the node if they depend
            on attributes.
        evaluate: `(space, node, *arrays) -> array` over a NumPy-like array namespace.
        kind: "elementwise", "movement", "reduction", "contraction", "leaf" (a value known without
            inputs), "input" (a named value from outside), "control" (blocks that run one after the
            other), "group" (blocks that run as one step), "item", "memory" or "foreign". Fusion and
            backends dispatch on it first.
        folds: returns the kind of reduction along the axes that the rule drops, in any order and
            from any parts. None if the op is no such reduction.
        aliases: True if the result shares the operand's memory, with another shape.
        spelled: `(builder, node) -> node`, an equivalent of ops that every backend has; used by
            `decompose`.
        flops: scalar operations for each output element (for each reduced element in reductions).
        operations: scalar operations of a node, if they do not follow from `flops` and the rule.
        attrs: attributes, as "axes: ints". The kinds are those of `ATTRIBUTES`; a name alone takes
            any value, and a "?" after the name marks an optional attribute.
        arity: number of operands, None for any number.
        at_least: minimum number of operands, for ops with any number.
        levels: the levels at which the op may appear.
        closed: True if its blocks see nothing outside.
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
        """True if each result element is an operand element at an index that an index map gives."""
        return self.kind == "movement" and self.arity == 1

    @cached_property
    def signature(self) -> dict[str, tuple[str, bool]]:
        """Maps attribute names to the kind of value and whether the attribute is required."""
        table: dict[str, tuple[str, bool]] = {}
        for text in self.attrs:
            name, _, kind = text.partition(":")
            table[name.rstrip("?")] = (kind.strip() or "any", not name.endswith("?"))
        return table


OPS: dict[str, OpDef] = {}
TABLES = "stack.op_tables"  # entry points of modules that define more ops: those of a mesh


def define(op: OpDef) -> OpDef:
    """Adds an op to the table. Raises ValueError if the name is taken."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is defined already")
    OPS[op.name] = op
    return op


@cache
def load_tables() -> None:
    """Adds the ops of wings and other packages to the table, without those of broken ones."""
    for name in plugins.names(TABLES):
        with suppress(Exception):
            plugins.load(TABLES, name)


def find(name: str) -> OpDef | None:
    """Returns the record of an op; None if there is none. Wings are loaded for unknown names.

    Callers look into `OPS` first, which is faster.
    """
    load_tables()
    return OPS.get(name)


def lookup(name: str) -> OpDef:
    """Returns the record of an op. Raises RuleError, which suggests similar names."""
    op = OPS.get(name) or find(name)
    if op is None:
        near = difflib.get_close_matches(name, OPS, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RuleError(f"unknown op {name!r}{hint}")
    return op


def check_signature(
    op: OpDef, args: Sequence[Node], attrs: Mapping[str, Any], blocks: Sequence[Block] = ()
) -> None:
    """Checks the number of operands and the names and kinds of attributes. Raises RuleError."""
    if op.arity is not None and len(args) != op.arity:
        raise RuleError(f"{op.name} takes {op.arity} operand(s), got {len(args)}")
    if len(args) < op.at_least:
        raise RuleError(f"{op.name} takes at least {op.at_least} operand(s), got {len(args)}")
    if blocks and op.kind not in BLOCK_KINDS:
        raise RuleError(f"{op.name} takes no blocks, got {len(blocks)}")
    if not attrs and not op.attrs:
        return
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
    op = OPS.get(name) or lookup(name)
    try:
        given = {k: plain_attr(k, v) for k, v in attrs.items()}
        check_signature(op, args, given, blocks)
        found = op.infer(Site(name, tuple(args), given, tuple(blocks), hint))
        return found if found.sharding is None else unsharded(found)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        what = f"missing {error}" if isinstance(error, LookupError) else f"{error}"
        raise RuleError(f"{name} does not take these operands or attributes: {what}") from error


def algebra_of(node: Node) -> Algebra:
    """The algebraic facts of a node, which hold for all operands."""
    facts = lookup(node.op).algebra
    return facts if isinstance(facts, Algebra) else facts(node)


def is_view(node: Node) -> bool:
    """True if a node's elements are elements of its operand at indices that an index map gives."""
    return lookup(node.op).is_view


@cached_by_class
def is_whole_view(node: Node) -> bool:
    """True if a node is a view that shows every element: broadcast, reshape, transpose."""
    op = lookup(node.op)
    rule = rule_of(node) if op.is_view and op.windows is None else None
    if rule is None:
        return False
    read = [name for axis in rule.inputs[0] for name in axis.names]
    return len(set(read)) == len(read)


@cached_by_class
def rule_of(node: Node) -> Rule | None:
    """The axis rule of a node."""
    op = lookup(node.op)
    return op.rule(node) if op.rule else None


def restated(node: Node, rule: Rule) -> dict[str, Any] | None:
    """Attributes that give a node's op another rule over the node's axes; None if there are none.

    With them, the node can be rebuilt on operands whose axes are fewer, more, or permuted. For an
    op with windows, only permuted axes are possible.
    """
    op = lookup(node.op)
    if op.restated is not None:
        return {**node.attrs, **op.restated(node, rule)}
    return dict(node.attrs) if op.kind == "elementwise" else None


def relation_of(node: Node) -> Relation:
    """The access relation of a node: its own, or from its axis rule, or `FullRelation`."""
    return _linear(node) or _relation(node)


@cached_by_class
def _linear(node: Node) -> Linear | None:
    """The relation of a node if it is `Linear`, cached. Other relations hold nodes and are not
    cached.
    """
    made = _relation(node)
    return made if isinstance(made, Linear) else None


def _relation(node: Node) -> Relation:
    op = lookup(node.op)
    if op.relation is not None:
        return op.relation(node)
    operands = tuple(a.shape for a in node.args)
    rule = rule_of(node)
    if rule is None:
        return FullRelation(operands)
    results = tuple(t.shape for t in node.types)
    return related(rule, operands, results, op.windows(node) if op.windows else {})


def pull(node: Node, index: Index, reduced: Mapping[str, Dim] | None = None) -> list[Index]:
    """Returns the index in each operand that the output element `index` reads.

    Index entries are size expressions over loop symbols. `reduced` maps every reduced axis of the
    rule to an index. An index outside of an operand's shape (for `pad`, `concat`, `conv`) means
    that the operand is not read. Raises RuleError for ops whose reads depend on data or need a
    whole axis: no index map describes them.
    """
    try:
        return relation_of(node).pull(index, reduced or {})
    except RuleError as error:
        raise RuleError(f"{node.op}: {error}") from error


def footprint(node: Node, index: Index, result: int = 0) -> list[Region | None]:
    """The region of each operand that element `index` of a result may depend on; None if empty."""
    return relation_of(node).footprint(element(index), result)
