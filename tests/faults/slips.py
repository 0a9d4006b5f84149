"""Faulty rules as a student would write them, each with a small program that it changes.

The programs are in `slips.stack`. To run one rule as a pass:
`stackc bisect FILE --passes 'default,+tests/faults/slips.py:Slips{only=NAME}@canonical'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import stack
from stack.ir.builder import Builder, constant, make
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_number, number
from stack.ir.types import F32
from stack.rewrite import Log, Scope, on, rewrite
from stack.rewrite.engine import Simple


def filled(value: float, node: Node) -> Node:
    """A value of the same type whose elements are all equal."""
    return make("broadcast", (constant(value, node.dtype),), {"axes": ()}, hint=node.type)


# ---- algebra of real numbers, which floats do not have


@on("mul")
def exp_sum(node: Node, op: Builder, scope: Scope) -> Node | None:
    """exp(x) * exp(y) is exp(x + y): not where one of them overflows."""
    x, y = node.args
    return op.exp(op.add(x.args[0], y.args[0])) if x.op == y.op == "exp" else None


@on("rsqrt")
def no_eps(node: Node, op: Builder, scope: Scope) -> Node | None:
    """rsqrt(m + eps) is rsqrt(m): not of small m."""
    (inner,) = node.args
    small = inner.op == "add" and is_number(inner.args[1]) and number(inner.args[1]) < 1e-4
    return op.rsqrt(inner.args[0]) if small else None


@on("div")
def quotient_of_equals(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x / x is 1: not of 0, infinities and nan."""
    return filled(1.0, node) if node.args[0] is node.args[1] else None


@on("log")
def log_of_exp(node: Node, op: Builder, scope: Scope) -> Node | None:
    """log(exp(x)) is x: not where exp(x) overflows."""
    return node.args[0].args[0] if node.args[0].op == "exp" else None


@on("mul")
def times_zero(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x * 0 is 0: not of infinities and nan."""
    return filled(0.0, node) if number(node.args[1]) == 0 else None


@on("sub")
def cancelled(node: Node, op: Builder, scope: Scope) -> Node | None:
    """(a + b) - b is a: not where a + b rounds or overflows."""
    total, b = node.args
    return total.args[0] if total.op == "add" and total.args[1] is b else None


@on("sqrt")
def root_of_square(node: Node, op: Builder, scope: Scope) -> Node | None:
    """sqrt(x * x) is x: not of negative x."""
    (inner,) = node.args
    return inner.args[0] if inner.op == "mul" and inner.args[0] is inner.args[1] else None


@on("add")
def log_of_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """log(x) + log(y) is log(x * y): not of two negative numbers."""
    x, y = node.args
    return op.log(op.mul(x.args[0], y.args[0])) if x.op == y.op == "log" else None


@on("add")
def common_factor(node: Node, op: Builder, scope: Scope) -> Node | None:
    """a * b + a * c is a * (b + c): not where b + c overflows."""
    x, y = node.args
    if x.op == y.op == "mul" and x.args[0] is y.args[0]:
        return op.mul(x.args[0], op.add(x.args[1], y.args[1]))
    return None


@on("div")
def divided_once(node: Node, op: Builder, scope: Scope) -> Node | None:
    """a / b / c is a / (b * c): not where b * c overflows."""
    inner, c = node.args
    return op.div(inner.args[0], op.mul(inner.args[1], c)) if inner.op == "div" else None


@on("add")
def reassociated(node: Node, op: Builder, scope: Scope) -> Node | None:
    """(a + b) + c is a + (b + c): not in 16 bits, where a + b overflows soon."""
    inner, c = node.args
    if inner.op != "add" or node.dtype.name != "f16":
        return None
    return op.add(inner.args[0], op.add(inner.args[1], c))


# ---- functions of machine learning


@on("exp")
def softmax_without_maximum(node: Node, op: Builder, scope: Scope) -> Node | None:
    """exp(x - max) is as good as exp(x) in a softmax: not of large x."""
    (inner,) = node.args
    shifted = inner.op == "sub" and inner.args[1].op == "broadcast"
    return op.exp(inner.args[0]) if shifted and inner.args[1].args[0].op == "reduce" else None


@on("div")
def sigmoid_by_exp(node: Node, op: Builder, scope: Scope) -> Node | None:
    """1 / (1 + exp(-x)) is exp(x) / (exp(x) + 1): not where exp(x) overflows."""
    below = node.args[1]
    if number(node.args[0]) != 1 or below.op != "add" or below.args[0].op != "exp":
        return None
    e = op.exp(op.neg(below.args[0].args[0]))
    return op.div(e, op.add(e, 1.0))


@on("mul")
def gelu_by_tanh(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A GELU by tanh is one by erf: only to three digits."""
    half, other = node.args
    if other.op != "add" or other.args[0].op != "erf":
        return None
    x = other.args[0].args[0].args[0]
    inner = op.mul(op.add(op.mul(op.mul(op.mul(x, x), x), 0.044715), x), 0.7978845608)
    return op.mul(half, op.add(op.tanh(inner), 1.0))


@on("max")
def relu_by_comparison(node: Node, op: Builder, scope: Scope) -> Node | None:
    """max(x, 0) is x where x > 0, else 0: not of nan."""
    x, least = node.args
    return op.select(op.gt(x, 0.0), x, filled(0.0, node)) if number(least) == 0 else None


@on("div")
def mean_of_fewer(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A mean divides by n - 1: that is a sample's variance."""
    total, count = node.args
    if total.op != "reduce" or number(count) != 20:
        return None
    return op.div(total, 19.0)


@on("div")
def variance_in_one_pass(node: Node, op: Builder, scope: Scope) -> Node | None:
    """mean((x - m)**2) is mean(x**2) - m**2: not where m is large."""
    total, count = node.args
    square = total.args[0] if total.op == "reduce" else node
    if square.op != "mul" or square.args[0].op != "sub":
        return None
    x, mean = square.args[0].args[0], square.args[0].args[1].args[0]
    squares = make("reduce", (op.mul(x, x),), total.attrs)
    return op.sub(op.div(squares, count), op.mul(mean, mean))


# ---- comparisons and choices


@on("max")
def maximum_by_comparison(node: Node, op: Builder, scope: Scope) -> Node | None:
    """max(x, y) is x where x > y, else y: not of nan in x."""
    x, y = node.args
    return op.select(op.gt(x, y), x, y)


@on("ge")
def strict(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x >= y is x > y: not at ties."""
    return op.gt(*node.args)


@on("not")
def negated_comparison(node: Node, op: Builder, scope: Scope) -> Node | None:
    """not x < y is x >= y: not of nan."""
    (inner,) = node.args
    return op.ge(*inner.args) if inner.op == "lt" else None


@on("select")
def swapped_branches(node: Node, op: Builder, scope: Scope) -> Node | None:
    """The branches of a choice in the wrong order."""
    test, yes, no = node.args
    return op.select(test, no, yes) if yes.op == "exp" else None


@on("select")
def nan_is_kept(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A choice that replaces nan is thought to change nothing."""
    test, _, no = node.args
    return no if test.op in ("isnan", "ne") and test.args[0] is no else None


@on("round")
def half_up(node: Node, op: Builder, scope: Scope) -> Node | None:
    """round(x) is floor(x + 0.5): not of halves."""
    return op.floor(op.add(node.args[0], 0.5))


@on("rem")
def remainder_by_floor(node: Node, op: Builder, scope: Scope) -> Node | None:
    """rem(x, y) is x - floor(x / y) * y: not of numbers of different signs."""
    x, y = node.args
    return op.sub(x, op.mul(op.floor(op.div(x, y)), y))


# ---- axes and shapes


@on("reduce")
def sum_of_fewer(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A sum as one of halves: the last term of an odd axis is left out."""
    (x,) = node.args
    if x.op != "param" or x.tensor.rank != 1:
        return None
    half = int(x.shape[0]) // 2  # pyright: ignore[reportArgumentType]
    parts = [op.slice(x, start=(i * half,), limit=((i + 1) * half,), step=(1,)) for i in (0, 1)]
    return make("reduce", (op.add(*parts),), node.attrs)


@on("reduce")
def wrong_axis(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A sum over the other axis of a square matrix."""
    attrs = {**node.attrs, "axes": (0,)}
    return make("reduce", node.args, attrs) if node.attrs["axes"] == (1,) else None


@on("broadcast")
def wrong_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A vector repeated along the other axis of a square matrix."""
    if node.attrs["axes"] != (0,):
        return None
    return make("broadcast", node.args, {"axes": (1,)}, hint=node.type)


@on("transpose")
def square_transpose(node: Node, op: Builder, scope: Scope) -> Node | None:
    """The transpose of a square matrix is left out, since the shape is the same."""
    return node.args[0] if node.args[0].type == node.type else None


@on("slice")
def off_by_one(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A slice that starts one element early."""
    start, limit = node.attrs["start"], node.attrs["limit"]
    if start != (1,):
        return None
    attrs = {**node.attrs, "start": (0,), "limit": (limit[0] - 1,)}
    return make("slice", node.args, attrs)


@on("reduce")
def maximum_starts_at_zero(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A maximum whose accumulator begins with 0: not of negative rows."""
    (x,) = node.args
    if node.attrs["kind"] != "max" or x.op != "param":
        return None
    return make("reduce", (op.max(x, 0.0),), node.attrs)


# ---- element types


@on("cast")
def dropped_cast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A cast to integers and back is left out."""
    (inner,) = node.args
    back = inner.op == "cast" and inner.args[0].type == node.type
    return inner.args[0] if back else None


@on("cast")
def dropped_rounding(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A cast to f16 and back is left out: large numbers overflow there."""
    (inner,) = node.args
    back = inner.op == "cast" and inner.args[0].type == node.type
    return inner.args[0] if back and inner.dtype.name == "f16" else None


@on("div")
def integer_reciprocal(node: Node, op: Builder, scope: Scope) -> Node | None:
    """i / 7 is i times a seventh in floats: not of large i."""
    x, y = node.args
    if node.dtype.name != "i32" or number(y) != 7:
        return None
    wide = op.cast(x, type=node.tensor.with_dtype(F32))
    return op.cast(op.mul(wide, 1 / 7), type=node.type)


@on("div")
def shifted(node: Node, op: Builder, scope: Scope) -> Node | None:
    """i / 2 is a shift by 1: not of negative i."""
    return op.shr(node.args[0], 1) if number(node.args[1]) == 2 else None


@on("lt")
def widened_comparison(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x < y is x - y < 0 of integers: not where the difference overflows."""
    x, y = node.args
    return op.lt(op.sub(x, y), 0) if x.dtype.name == "i32" and not is_number(y) else None


RULES = [rule for rule in vars().copy().values() if isinstance(rule, Simple)]
TEXT = Path(__file__).with_suffix(".stack").read_text(encoding="utf-8")
PROGRAMS = {part.partition("(")[0]: f"func @{part}" for part in TEXT.split("func @")[1:]}


@dataclass(frozen=True)
class Slips(stack.Pass):
    """One rule of this file."""

    name: ClassVar[str] = "slips"
    only: str = ""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, [r for r in RULES if r.name == self.only], log)
