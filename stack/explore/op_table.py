"""The op table as rows, for `stackc ops` and the reference page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.axes import Axis
from stack.ir.builder import Builder, param
from stack.ir.node import Block, Node
from stack.ir.ops import LEVELS, OPS, OpDef, load_tables, rule_of
from stack.ir.printer import print_node
from stack.ir.types import TensorType, tensor

Row = dict[str, Any]
_b = Builder()
_x, _y = param("x", tensor("f32", 2, 3)), param("y", tensor("f32", 3, 4))
_s, _i = param("s", tensor("f32")), param("i", tensor("i64", 5))
_p = param("p", _x.type)
_body = (Block((_p,), (_b.exp(_p),)),)
_test = Block((_p,), (_b.const(True),))
_group = {"mesh": "dp=2, tp=4", "over": "tp"}
_q = param("q", tensor("f32", 8, 3))
_window = {"stride": (1,), "low": (0,), "high": (0,), "lhs_dilation": (1,), "rhs_dilation": (1,)}


def _stream() -> Node:
    """The example of op `stream`: log(sum(exp(x))) of each row, by its running max and sum."""
    m = _b.reduce(_p, kind="max", axes=(1,))
    away = _b.sub(_p, _b.broadcast(m, axes=(0,), type=_p.type))
    states = Block((_p,), (m, _b.reduce(_b.exp(away), kind="sum", axes=(1,))))
    m0, l0, m1, l1 = (param(n, m.type) for n in ("m0", "l0", "m1", "l1"))
    correct = Block((m0, l0, m1, l1), (m0, _b.mul(l0, _b.exp(_b.sub(m0, m1)))))
    finish = Block((m0, l0, _p), (_b.add(m0, _b.log(l0)),))
    return _b.stream(_x, name="lse", blocks=(states, correct, finish))


# an example of each op that is not elementwise; the row shows the example's axis rule
EXAMPLES: dict[str, Callable[[], Node]] = {
    "const": lambda: _b.const(np.array([1.0, 2.0]), "f32"),
    "iota": lambda: _b.iota(axis=0, type=tensor("i64", 5)),
    "size": lambda: _b.size(value=5, type=tensor("i64")),
    "reshape": lambda: _b.reshape(
        param("x", tensor("f32", 2, 3, 8)), type=tensor("f32", 2, 3, 4, 2)
    ),
    "transpose": lambda: _b.transpose(_x, perm=(1, 0)),
    "broadcast": lambda: _b.broadcast(_x, axes=(0, 2), type=tensor("f32", 2, 4, 3)),
    "slice": lambda: _b.slice(_x, start=(0, 1), limit=(2, 3), step=(1, 1)),
    "reverse": lambda: _b.reverse(_x, axes=(1,)),
    "pad": lambda: _b.pad(_x, 0.0, low=(0, 1), high=(0, 1), interior=(0, 0)),
    "unfold": lambda: _b.unfold(_x, axis=1, window=(2,), stride=(1,), dilation=(1,)),
    "concat": lambda: _b.concat(_x, _x, axis=1),
    "gather": lambda: _b.gather(_x, _i, rule="v! d, n -> n d"),
    "scatter": lambda: _b.scatter(
        _x, _i, param("u", tensor("f32", 5, 3)), rule="v! d, n, n d -> v! d", kind="add"
    ),
    "reshard": lambda: _b.reshard(_x, type=_x.type),
    "all_reduce": lambda: _b.all_reduce(_x, kind="sum", **_group),
    "all_gather": lambda: _b.all_gather(_x, axis=1, **_group),
    "reduce_scatter": lambda: _b.reduce_scatter(_q, kind="sum", axis=0, **_group),
    "all_to_all": lambda: _b.all_to_all(_q, split=0, concat=1, **_group),
    "permute": lambda: _b.permute(_x, mesh="r=4", order=(1, 2, 3, 0)),
    "halo": lambda: _b.halo(_q, axis=0, size=32, overlap=(-1, 9, 8), **_group),
    "shard": lambda: _b.shard(_q, axis=0, **_group),
    "part_start": lambda: _b.part_start(size=6, **_group),
    "part_held": lambda: _b.part_held(size=6, **_group),
    "reduce": lambda: _b.reduce(_x, kind="sum", axes=(1,)),
    "argreduce": lambda: _b.argreduce(_x, kind="max", axis=1, type=tensor("i64", 2)),
    "scan": lambda: _b.scan(_x, kind="sum", axis=1, reverse=False),
    "sort": lambda: _b.sort(_x, axis=1, num_keys=1, descending=False),
    "dot": lambda: _b.dot(_x, _y, rule="m k, k n -> m n"),
    "ragged_dot": lambda: _b.ragged_dot(
        _x, param("w", tensor("f32", 5, 3, 4)), _i, rule="s! k, g^ k n, g^ -> s! n"
    ),
    "conv": lambda: _b.conv(
        param("x", tensor("f32", 1, 4, 9)), param("w", tensor("f32", 6, 2, 3)), **_window, groups=2
    ),
    "item": lambda: _b.item(_b.sort(_x, _x, axis=1, num_keys=1, descending=False), index=1),
    "call": lambda: _b.call(_x, name="layer", blocks=_body),
    "custom": lambda: _b.custom(_x, name="my.exp", rule="m n -> m n", blocks=_body),
    "fusion": lambda: _b.fusion(_x, kind="loop", blocks=_body),
    "cond": lambda: _b.cond(param("i", tensor("i32")), _x, blocks=_body * 2),
    "stream": _stream,
    "while": lambda: _b.while_(_x, blocks=(_test, *_body)),
}


def op_rows() -> list[Row]:
    """One row for each op: description, signature, cost and an example."""
    load_tables()
    return [_row(op) for op in OPS.values()]


def _row(op: OpDef) -> Row:
    example = _example(op)
    rule = rule_of(example) if example is not None else None
    marks = {a.mark for o in rule.inputs for a in o} if rule is not None else set[str]()
    return {
        "name": op.name,
        "doc": op.doc,
        "kind": op.kind,
        "operands": _operands(op),
        "attributes": [_attribute(name, kind, need) for name, (kind, need) in op.signature.items()],
        "levels": [level for level in LEVELS if level in op.levels],
        "flops": op.flops,
        "rule": str(rule) if rule is not None else "",
        "reads": _reads(op, rule is not None, marks),
        "example": print_node(example) if example is not None else "",
    }


def _operands(op: OpDef) -> int | str:
    if op.arity is not None:
        return op.arity
    return f"{op.at_least} or more" if op.at_least else "any"


def _attribute(name: str, kind: str, is_needed: bool) -> str:
    return name + ("" if is_needed else "?") + ("" if kind == "any" else f": {kind}")


def _reads(op: OpDef, has_rule: bool, marks: set[str]) -> str:
    """Names what determines which operand elements an op reads, for a column of the op table:
    "rule", "window", "data or whole axis" or "body"; "" if the op has no index map.
    """
    if op.windows is not None:
        return "window"
    if has_rule and op.arity != 0:
        return "data or whole axis" if marks - {""} else "rule"
    return "body" if op.kind in ("control", "group", "item") else ""


def _example(op: OpDef) -> Node | None:
    if op.name in EXAMPLES:
        return EXAMPLES[op.name]()
    if op.kind != "elementwise":
        return None
    for dtype in ("f32", "i32"):
        type_ = tensor(dtype, 2, 3)
        args = [param(n, type_) for n in "xyz"[: op.arity]]
        if op.name == "select":
            args[0] = param("c", TensorType(_test.results[0].dtype, type_.shape))
        hint = tensor("f16" if op.name == "cast" else "u32", 2, 3)
        try:
            return Builder().op(op.name, args, hint=hint)
        except RuleError:
            continue
    return None


def marks_text() -> str:
    """The legend of axis-rule marks, for the head of the page."""
    meaning = {
        Axis(("k",)): "passes through, or is reduced if the result lacks it",
        Axis(("k",), "!"): "needed whole in one place",
        Axis(("k",), "~"): "carried in order",
        Axis(("k",), "^"): "read through a window or offset",
        Axis(("h", "d")): "one dim of two axes, the major one first",
        Axis(()): "a dim of size 1",
    }
    return "\n".join(f"{axis!s:6} {text}" for axis, text in meaning.items())


def reference() -> str:
    """The op table as a Markdown page."""
    load_tables()
    lines = ["# Ops", "", "```text", marks_text(), "```", ""]
    for kind in dict.fromkeys(op.kind for op in OPS.values()):
        lines += [f"## {kind}", "", "| op | what it does | attributes | rule | levels |"]
        lines += ["|---|---|---|---|---|"]
        for row in op_rows():
            if row["kind"] == kind:
                attributes, levels = ", ".join(row["attributes"]), ", ".join(row["levels"])
                cells = [f"`{row['name']}`", row["doc"], attributes, f"`{row['rule']}`", levels]
                cells = ["" if c == "``" else str(c).replace("|", "\\|") for c in cells]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
