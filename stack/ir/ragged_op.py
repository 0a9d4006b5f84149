"""Grouped matmuls over ragged groups of rows: type, and roles of the axes.

`ragged_dot(x, y, ends)` contracts like `dot`, but each row belongs to one group: row `s` is in
group `g` if `ends[g - 1] <= s < ends[g]`. Rows past the last end are in no group. The rule marks
the rows `!` and the groups `^`:

- `s! k, g^ k n, g^ -> s! n`: each row times the matrix of its group. A row in no group is 0, or
  unspecified with `loose`;
- `s! k, s! n, g^ -> g^ k n`: for each group the matmul of its rows, summed over them.

It is the grouped GEMM of CUTLASS and torch, and the ragged dot of JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stack.ir.algebra import Algebra
from stack.ir.axes import Rule, parse_rule, unmarked
from stack.ir.movement_ops import rule_attr
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.relation import Relation, related
from stack.ir.types import TensorType, Type


@dataclass(frozen=True)
class RaggedAxes:
    """Axis names of both operands and of the result, and the names of the row and group axes."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    result: tuple[str, ...]
    rows: str
    groups: str

    @property
    def sums_rows(self) -> bool:
        """True if the result has one matrix for each group instead of rows."""
        return self.groups in self.result

    @property
    def plain_rule(self) -> str:
        """Returns the axis rule of the `dot` that a `ragged_dot` computes for one group: its own
        rule without the group axis.
        """
        left, right, made = (
            " ".join(n for n in names if n != self.groups)
            for names in (self.left, self.right, self.result)
        )
        return f"{left}, {right} -> {made}"


def ragged_axes(node: Node) -> RaggedAxes:
    """The axes of a `ragged_dot`."""
    axes = _axes(rule_attr(node))
    assert axes is not None, "type inference has checked it"
    return axes


def _axes(rule: Rule) -> RaggedAxes | None:
    """The roles of the axes in a rule of one of the module's two forms; None for a rule of another
    form.
    """
    operands = (*rule.inputs, *rule.outputs)
    if len(operands) != 4 or any(len(a.names) != 1 for o in operands for a in o):
        return None
    marks = {(a.names[0], a.mark) for o in operands for a in o}
    names = [tuple(a.names[0] for a in o) for o in operands]
    rows = [n for n, mark in marks if mark == "!"]
    groups = [n for n, mark in marks if mark == "^"]
    if len(rows) != 1 or len(groups) != 1 or len(marks) != len({n for n, _ in marks}):
        return None
    left, right, ends, result = names
    made = RaggedAxes(left, right, result, rows[0], groups[0])
    has_rows = made.rows in left and (made.rows in right) == made.sums_rows != (made.rows in result)
    has_groups = groups[0] not in left and (groups[0] in right) != made.sums_rows
    is_plain = all(len(set(found)) == len(found) for found in (left, right, result))
    return made if has_rows and has_groups and is_plain and ends == (groups[0],) else None


def _infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if _axes(rule) is None:
        raise site.fail(f"rule {str(rule)!r} is not of rows (!) in groups (^)")
    x, y, ends = site.args
    if x.dtype != y.dtype or not ends.dtype.is_integer:
        raise site.fail("operands have one element type, and ends are integers")
    (shape,) = rule.output_shapes([a.shape for a in site.args])
    dtype = site.hint.dtype if isinstance(site.hint, TensorType) else x.dtype
    if dtype.kind != x.dtype.kind:
        raise site.fail(f"accumulates in a wider type of the same kind, not in {dtype}")
    return TensorType(dtype, shape)


def _relation(node: Node) -> Relation:
    """The access relation: a row keeps its index in operands and result, a row may belong to any
    group, and every element may depend on all of `ends`.
    """
    rule = unmarked(rule_attr(node))
    left, right, ends = rule.inputs
    read = Rule((left, right, tuple(replace(a, mark="!") for a in ends)), rule.outputs)
    return related(read, [a.shape for a in node.args], [node.shape], {})


define(
    OpDef(
        "ragged_dot",
        "contract rows with the matrix of their group, or the rows of each group",
        "contraction",
        _infer,
        rule=rule_attr,
        relation=_relation,
        algebra=Algebra(((0,), (1,))),
        flops=2,
        attrs=("rule: str", "loose?: bool"),
        arity=3,
    )
)
