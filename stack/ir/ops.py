"""The op table: what an op is, in one record. Levels are sets of these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import RuleError
from stack.ir.axes import Index, Rule
from stack.ir.node import Block, Node
from stack.ir.types import Type

LEVELS = ("tensor", "tile", "loop")


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


@dataclass(frozen=True)
class OpDef:
    """One op: signature, axis rule, meaning and cost.

    Attributes:
        infer: type of the result from a `Site`; raises RuleError.
        rule: axis rule of a node, or None where the op has no axes (constants, calls).
        pull: index of every operand that output element `index` reads; derived from the rule
            where not given. Reduced axes are appended to `index` by the caller.
        evaluate: `(space, node, *arrays) -> array` over a NumPy-like array namespace.
        kind: "elementwise", "movement", "reduction", "contraction", "leaf", "control", "memory"
            or "foreign"; what fusion and backends dispatch on first.
        flops: scalar operations for each output element (each reduced element for reductions).
        attrs: names it takes; a trailing "?" marks an optional one.
        arity: number of operands, None for any.
        levels: where it may appear.
        closed: whether its blocks see nothing outside.
    """

    name: str
    doc: str
    kind: str
    infer: Callable[[Site], Type]
    evaluate: Callable[..., Any] | None = None
    rule: Callable[[Node], Rule | None] | None = None
    pull: Callable[[Node, Index], list[Index]] | None = None
    flops: float = 0
    attrs: tuple[str, ...] = ()
    arity: int | None = None
    levels: frozenset[str] = field(default_factory=lambda: frozenset({"tensor"}))
    closed: bool = True


OPS: dict[str, OpDef] = {}


def define(op: OpDef) -> OpDef:
    """Enter an op in the table; a name can be taken once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is defined already")
    OPS[op.name] = op
    return op


def lookup(name: str) -> OpDef:
    """The record of an op, or a RuleError that suggests near names."""
    if name not in OPS:
        import difflib

        near = difflib.get_close_matches(name, OPS, 3)
        raise RuleError(f"unknown op {name!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return OPS[name]


def check_signature(op: OpDef, args: Sequence[Node], attrs: Mapping[str, Any]) -> None:
    """Number of operands and names of attributes; raises RuleError."""
    if op.arity is not None and len(args) != op.arity:
        raise RuleError(f"{op.name} takes {op.arity} operand(s), got {len(args)}")
    allowed = {a.rstrip("?") for a in op.attrs}
    for name in attrs:
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise RuleError(f"{op.name} has no attribute {name!r}; it takes: {known}")
    for name in op.attrs:
        if not name.endswith("?") and name not in attrs:
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
    check_signature(op, args, attrs)
    return op.infer(Site(name, tuple(args), attrs, tuple(blocks), hint))


def rule_of(node: Node) -> Rule | None:
    """The axis rule of a node."""
    op = lookup(node.op)
    return op.rule(node) if op.rule else None


def pull(node: Node, index: Index, reduced: Mapping[str, Any] | None = None) -> list[Index]:
    """Which element of every operand the output element `index` reads.

    Index entries are sizes expressions over loop symbols. `reduced` names an index for every
    reduced axis. Raises RuleError for ops whose reads depend on data.
    """
    op = lookup(node.op)
    if op.pull is not None:
        return op.pull(node, index)
    rule = rule_of(node)
    if rule is None:
        raise RuleError(f"{node.op} reads its operands in a way that no index map describes")
    sizes = rule.sizes([a.shape for a in node.args])
    return rule.pull(index, sizes, dict(reduced or {}))
