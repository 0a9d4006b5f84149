"""canonicalize: one spelling for each value. Exact rewrites only: no bit of a result changes.

Floats keep their meaning: `x + 0.0` is not `x` (x may be -0.0), `x * 0.0` is not 0 (x may be nan).
`x + -0.0`, `x - 0.0`, `x * 1.0` and `x / 2.0` have exact equals and are rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stack.ir import ops
from stack.ir.algebra import ELEMENTWISE, Algebra
from stack.ir.builder import Builder, constant, filled, make
from stack.ir.dim import product
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.ops import OPS
from stack.ir.traits import (
    converts,
    is_alias,
    is_reduction,
    maker,
    negates,
    negative_of,
    place_of,
    reinterprets,
    signs,
    splat,
    spread,
)
from stack.ir.types import BOOL, I32, I64, DType, TensorType, holds_all
from stack.passes.rules.indexing import INDEX_RULES
from stack.passes.rules.movement import MOVEMENT_RULES, reshape_to
from stack.rewrite.engine import Scope, Simple, inline_block, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Why


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Simplify algebra, shapes and casts by exact rules."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, RULES, log)


def _named(holds: Callable[[Algebra], bool], arity: int = 2) -> tuple[str, ...]:
    """Returns the elementwise ops of this arity whose algebra satisfies a predicate."""
    return tuple(n for n, facts in ELEMENTWISE.items() if OPS[n].arity == arity and holds(facts))


@on(*_named(lambda facts: facts.commutative))
def constant_right(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: swaps the operands of a commutative op if only the first one is a constant."""
    a, b = node.args
    if splat(a) is not None and splat(b) is None:
        return make(node.op, (b, a))
    return None


@on(*_named(lambda facts: math.isfinite(facts.neutral.get(1, math.inf))))
def neutral(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Rule: an op with its neutral element as second operand is its first operand: x * 1, x / 1, x
    - 0, x + -0.0, x & true."""
    x, c = node.args
    value, wanted = splat(c), ops.algebra_of(node).neutral[1]
    if value is None or x.type != node.type or node.dtype.kind not in "iufb":
        return None
    if value != (_all_bits(node.dtype) if wanted == -1 else wanted):
        return None
    terms = signs(node)
    if terms and node.dtype.is_float and math.copysign(1.0, value) != -terms[1]:
        return Why("it makes 0.0 of -0.0")
    return x


def _all_bits(dtype: DType) -> int:
    """Returns the integer, or the bool, with all bits set."""
    return {"b": 1, "u": (1 << dtype.bits) - 1}.get(dtype.kind, -1)


@on(*_named(lambda facts: facts.absorbing.get(1) == 0))
def absorbing(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Rule: x * 0 and x & 0 are 0, for integers and bools only."""
    if splat(node.args[1]) != 0:
        return None
    if node.dtype.kind not in "iub":
        return Why("0 times an infinity is a nan, and 0 times -1 is -0.0")
    return filled(constant(0, node.dtype), node)


@on("mul")
def times_minus_one(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x * -1 is -x."""
    x, c = node.args
    if node.dtype.kind == "f" and splat(c) == -1 and x.type == node.type:
        return make("neg", (x,))
    return None


@on("div")
def divide_by_power_of_two(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """x / 8.0 is x * 0.125: both round the same real number."""
    value = splat(node.args[1])
    if node.dtype.kind != "f" or not isinstance(value, float) or not math.isfinite(value):
        return None
    if value == 0.0 or abs(math.frexp(float(value))[0]) != 0.5:
        return Why(f"1 / {value:g} is no float: a product rounds twice")
    limits = np.finfo(node.dtype.numpy)
    if not float(limits.tiny) <= abs(1 / value) <= float(limits.max):
        return None
    return make("mul", (node.args[0], filled(constant(1 / value, node.dtype), node.args[1])))


@on(*(name for name, facts in ELEMENTWISE.items() if facts.inverse == name))
def twice(node: Node, op: Builder, scope: Scope) -> Node | None:
    """-(-x), not not x."""
    inner = node.args[0]
    return inner.args[0] if inner.op == node.op else None


@on(*_named(lambda facts: facts.idempotent, 1))
def idempotent(node: Node, op: Builder, scope: Scope) -> Node | None:
    """The second of two equal roundings does nothing; |-x| is |x| for signed types."""
    inner = node.args[0]
    if inner.op == node.op:
        return inner
    if node.op == "abs" and negative_of(inner) and node.dtype.kind != "u":
        return make("abs", inner.args)
    rounded = ("floor", "ceil", "round", "trunc")
    return inner if node.op in rounded and inner.op in rounded else None


@on(*_named(lambda facts: facts.idempotent))
def same_operands(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: an op such as max on two equal operands is that operand: max(x, x) is x."""
    return node.args[0] if node.args[0] is node.args[1] else None


@on("sub", "xor")
def cancels(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Rule: x - x and x ^ x are 0, for integers and bools only."""
    if node.args[0] is not node.args[1]:
        return None
    if node.dtype.kind not in "iub":
        return Why("an infinity minus itself is a nan")
    return filled(constant(0, node.dtype), node)


@on(*_named(lambda facts: facts.reflexive is not None))
def compares_itself(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Rule: a comparison of a value with itself is a known bool, for integers and bools only: x ==
    x is true, x < x is false."""
    if node.args[0] is not node.args[1]:
        return None
    if node.args[0].dtype.kind not in "iub":
        return Why("a nan is not equal to itself")
    return filled(constant(bool(ops.algebra_of(node).reflexive), BOOL), node)


@on("sub", of=("neg",))
def minus_negative(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x - (-y) is x + y."""
    x, y = node.args
    return make("add", (x, y.args[0])) if negative_of(y) else None


@on("add", of=("neg",))
def plus_negative(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x + (-y) is x - y."""
    x, y = node.args
    return make("sub", (x, y.args[0])) if negative_of(y) and node.dtype.kind in "iuf" else None


@on("select")
def chosen(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: a select on a known condition, or between equal values, is the selected value; a select
    on `not c` is one on `c` with its values swapped."""
    test, yes, no = node.args
    value = splat(test)
    if value is not None:
        return _or_broadcast_any(node, yes if value else no)
    if yes is no:
        return _or_broadcast_any(node, yes)
    if negates(test):
        return make("select", (test.args[0], no, yes))
    return None


def _or_broadcast_any(node: Node, value: Node) -> Node | None:
    return filled(value, node) if value.type == node.type or not value.shape else None


@on("cast")
def cast_of_cast(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Rule: drops a cast to the same type, and the first of two casts if its type represents every
    value of its source."""
    inner = node.args[0]
    if inner.type == node.type:
        return inner
    if converts(inner) and node.dtype.kind != "b":
        source = inner.args[0]
        if not holds_all(inner.dtype, source.dtype):
            return Why(f"{inner.dtype} cannot represent every value of {source.dtype}", inner)
        if source.dtype.kind != "b":
            return source if source.type == node.type else make("cast", (source,), hint=node.type)
    return None


@on("bitcast")
def bitcast_of_bitcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Only the first and the last type of two bitcasts matter."""
    inner = node.args[0]
    if inner.type == node.type:
        return inner
    if reinterprets(inner):
        source = inner.args[0]
        return source if source.type == node.type else make("bitcast", (source,), hint=node.type)
    return None


@on("reduce")
def reduces_nothing(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: a reduction over no axes is its operand; one over axes of size 1 is a reshape."""
    x = node.args[0]
    axes: tuple[int, ...] = node.attrs["axes"]
    if not axes:
        return x
    if all(x.shape[a] == 1 for a in axes):
        return reshape_to(x, node.type)
    return None


@on("reduce")
def reduce_of_reduce(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """Two nested reductions of one kind are one over both axes, if the order does not matter."""
    inner, kind = node.args[0], node.attrs["kind"]
    if not is_reduction(inner) or inner.attrs["kind"] != kind:
        return None
    if kind not in ("max", "min", "and", "or") and not node.dtype.is_integer:
        return Why(f"a {kind} of {node.dtype} depends on its order", inner)
    if node.dtype.bits < 32:
        return None
    first: tuple[int, ...] = inner.attrs["axes"]
    second: tuple[int, ...] = node.attrs["axes"]
    kept = [i for i in range(inner.args[0].tensor.rank) if i not in first]
    axes = sorted((*first, *(kept[a] for a in second)))
    return make("reduce", inner.args, {"kind": kind, "axes": tuple(axes)})


@on("cond", "item")
def known_branch(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: a result of a branch (`cond`) with a constant condition is that result of the body that
    the constant selects, inlined."""
    branch = maker(node)
    is_result = branch.op == "cond" and isinstance(node.type, TensorType)
    value = splat(branch.args[0]) if is_result else None
    if value is None:
        return None
    index = min(max(int(value), 0), len(branch.blocks) - 1)
    return inline_block(branch.blocks[index], branch.args[1:], op)[place_of(node)]


BY_ELEMENT = tuple(name for name, op in OPS.items() if op.kind == "elementwise")
ALIASES = tuple(name for name, op in OPS.items() if op.aliases)


@on(*BY_ELEMENT, of=("broadcast",))
def scalar_operand(node: Node, op: Builder, scope: Scope) -> Node | None:
    """An operand that is a broadcast scalar is replaced by the scalar, beside a full operand."""
    if len(node.args) < 2 or not node.shape:
        return None
    if not any(spread(a) == () for a in node.args):
        return None
    args = [a.args[0] if spread(a) == () else a for a in node.args]
    if all(not a.shape for a in args):
        return make("broadcast", (make(node.op, args, node.attrs),), {"axes": ()}, hint=node.type)
    return make(node.op, args, node.attrs)


@on(*BY_ELEMENT, of=("broadcast",))
def compute_before_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """op(broadcast(x), broadcast(y)) along the same axes: compute on the small operands."""
    wide = [a for a in node.args if a.shape]
    axes = spread(wide[0]) if wide else None
    if axes is None or any(spread(a) != axes for a in wide):
        return None
    shapes = {a.args[0].shape for a in wide}
    if len(shapes) > 1:
        return None
    args = [a.args[0] if a.shape else a for a in node.args]
    small = make(node.op, args, node.attrs, hint=node.tensor.with_shape(shapes.pop()))
    return make("broadcast", (small,), {"axes": axes}, hint=node.type)


@on(*BY_ELEMENT, of=ALIASES)
def compute_before_reshape(node: Node, op: Builder, scope: Scope) -> Node | None:
    """op(reshape(x), reshape(y)) of one shape: reshape the result, which may cancel later."""
    wide = [a for a in node.args if a.shape]
    if not wide or not all(map(is_alias, wide)):
        return None
    shape = wide[0].args[0].shape
    if any(a.args[0].shape != shape for a in wide) or not shape:
        return None
    args = [a.args[0] if a.shape else a for a in node.args]
    before = make(node.op, args, node.attrs, hint=node.tensor.with_shape(shape))
    return make("reshape", (before,), hint=node.type)


@on("reduce")
def counts(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: a sum of bools in 64-bit integers is computed in 32 bits and then widened, if it has
    fewer than 2^31 elements."""
    inner, axes = node.args[0], [int(a) for a in node.attrs["axes"]]
    if node.attrs["kind"] != "sum" or node.dtype != I64 or not converts(inner) or not axes:
        return None
    places = product([inner.shape[a] for a in axes])
    if inner.args[0].dtype != BOOL or not isinstance(places, int) or places >= 1 << 31:
        return None
    narrow = make("cast", inner.args, hint=inner.tensor.with_dtype(I32))
    return make("cast", (make("reduce", (narrow,), node.attrs),), hint=node.type)


RULES: tuple[Simple, ...] = (
    *MOVEMENT_RULES,
    *INDEX_RULES,
    constant_right,
    neutral,
    absorbing,
    times_minus_one,
    divide_by_power_of_two,
    twice,
    idempotent,
    same_operands,
    cancels,
    compares_itself,
    minus_negative,
    plus_negative,
    chosen,
    cast_of_cast,
    bitcast_of_bitcast,
    reduces_nothing,
    reduce_of_reduce,
    counts,
    known_branch,
    scalar_operand,
    compute_before_broadcast,
    compute_before_reshape,
)
