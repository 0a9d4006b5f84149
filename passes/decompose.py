"""decompose: spell rare forms with the ops that every backend has.

- a dot with axes beyond batch, row, column and contracted: an axis of one operand that the result
  lacks is summed first, and a dot without a contracted axis is a multiplication;
- on a CPU, a dot without rows and columns is a sum of products: a long one is shared among threads,
  and its operands are computed in the same loop;
- a matmul with a diagonal matrix scales rows or columns, see `rules.diagonal_dot`;
- a convolution whose windows do not overlap is a dot, unless `layout` is to choose;
- updates of 16-bit types that collide are combined in f32 and rounded once, not at each update;
- small integer powers are products; an op whose record spells it with others is spelled so;
- a matmul of widened integers takes the narrow ones: it accumulates in its own type;
- 1 + tanh(x) is 2 sigmoid(2 x): one exponential, and no cancellation for tanh close to -1.

These may change a result by a rounding, which `canonicalize` never does.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, constant, converted, filled, make, reshaped, spread_by_name
from stack.ir.contraction import contraction
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.ops import OPS
from stack.ir.traits import converts, splat
from stack.ir.types import BF16, F16, F32
from stack.passes.rules.convolutions import CONV_RULES, windows_apart
from stack.passes.rules.diagonal_dot import diagonal_operand
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.rules.updates import sums_of_few_rows
from stack.passes.tiling.frame import wide
from stack.rewrite.engine import Scope, Simple, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Decompose(Pass, needs=("conv", "dot", "pow", "scatter", "tanh")):
    """Spell rare ops and forms with common ones.

    Attributes:
        gpu: give convolutions the form that a GPU computes fast; otherwise give integer matmuls and
            inner products the form for a CPU.
        apart: turn convolutions whose windows do not overlap into matmuls here.
    """

    gpu: bool = False
    apart: bool = True

    def idle(self, func: Func) -> str:
        return "" if any(OPS[op].spelled for op in func.body.ops) else super().idle(func)

    def run(self, func: Func, log: Log) -> Func:
        first = CONV_RULES if self.gpu else (inner_products, short_integers)
        apart = (windows_apart,) if self.apart else ()
        spelled = Simple("spelled", tuple(n for n, op in OPS.items() if op.spelled), _spelled)
        return rewrite(func, (*first, sums_of_few_rows, spelled, *RULES, *apart), log)


def _spelled(node: Node, op: Builder, scope: Scope) -> Node | None:
    """An op whose record spells it with other ops."""
    spell = OPS[node.op].spelled
    return spell(op, node) if spell else None


@on("pow")
def small_power(node: Node, op: Builder, scope: Scope) -> Node | None:
    """x ** 2, x ** 3, x ** -1, x ** 1, x ** 0."""
    x = node.args[0]
    value = splat(node.args[1])
    if x.type != node.type or value is None:
        return None
    if value == 1:
        return x
    if value == 0:
        return filled(constant(1, node.dtype), node)
    if value == 2:
        return make("mul", (x, x))
    if value == 3:
        return make("mul", (make("mul", (x, x)), x))
    if value == -1 and node.dtype.is_float:
        return make("div", (filled(constant(1, node.dtype), node), x))
    return None


@on("add", of=("tanh",))
def one_plus_tanh(node: Node, op: Builder, scope: Scope) -> Node | None:
    """1 + tanh(x), if nothing else reads the tanh."""
    tanh, one = node.args
    if tanh.op != "tanh" or splat(one) != 1 or node.dtype.bits < 32 or tanh.type != node.type:
        return None
    if len(scope.users(tanh)) > 1:
        return None
    two = constant(2, node.dtype)
    return make("mul", (make("sigmoid", (make("mul", (tanh.args[0], two)),)), two))


@on("dot")
def lone_axes(node: Node, op: Builder, scope: Scope) -> Node | None:
    """An axis that only one operand has: sum that operand over it first."""
    inputs, output = dot_axes(node)
    for i, names in enumerate(inputs):
        others = {n for j, o in enumerate(inputs) if j != i for n in o}
        lone = [a for a, n in enumerate(names) if n not in others and n not in output]
        if not lone or node.args[i].dtype.bits < 32:
            continue
        args = list(node.args)
        args[i] = make("reduce", (args[i],), {"kind": "sum", "axes": tuple(lone)})
        inputs[i] = [n for a, n in enumerate(names) if a not in lone]
        return make_dot(args, inputs, output, node)
    return None


@on("dot")
def without_contraction(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A dot without a contracted axis: an outer or elementwise product."""
    inputs, output = dot_axes(node)
    if node.dtype != node.args[0].dtype or any(n not in output for o in inputs for n in o):
        return None
    sides = [spread_by_name(a, names, output, node.shape) for a, names in zip(node.args, inputs)]
    return make("mul", sides)


@on("dot")
def inner_products(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rows and columns have size 1: multiply elements and sum them, for each batch entry."""
    names = contraction(parse_rule(node.attrs["rule"]))
    inputs, output = dot_axes(node)
    sizes = {n: s for o, a in zip(inputs, node.args, strict=True) for n, s in zip(o, a.shape)}
    if names.lone or any(sizes[n] != 1 for n in (*names.rows, *names.columns)):
        return None
    order = [n for n in inputs[0] if n in inputs[1] and sizes[n] != 1]
    summed = tuple(i for i, n in enumerate(order) if n in names.contracted)
    if not summed or node.dtype.kind == "c":
        return None
    dtype = wide(node.dtype)
    sides: list[Node] = []
    for arg, own in zip(node.args, inputs, strict=True):
        both = [n for n in own if n in order]
        x = reshaped(arg, tuple(sizes[n] for n in both))
        x = transposed(x, [both.index(n) for n in order])
        sides.append(converted(x, dtype))
    total = make("reduce", (make("mul", sides),), {"kind": "sum", "axes": summed})
    kept = [n for n in order if n in output]
    total = transposed(total, [kept.index(n) for n in output if n in kept])
    return reshaped(converted(total, node.dtype), node.shape)


@on("dot")
def short_integers(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Both operands are widened from one integer type: the matmul widens them itself."""
    names = contraction(parse_rule(node.attrs["rule"]))
    if not node.dtype.is_integer or names.lone or not names.contracted:
        return None
    short = [a.args[0] for a in node.args if converts(a)]
    kinds = {a.dtype for a in short}
    if len(short) < len(node.args) or len(kinds) > 1:
        return None
    (kind,) = kinds
    if kind.kind != node.dtype.kind or kind.bits > node.dtype.bits:
        return None
    return make("dot", short, node.attrs, hint=node.type)


@on("scatter")
def combine_wide(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Sums and products of 16-bit floats at one index of a scatter, in f32."""
    if node.dtype not in (BF16, F16) or node.attrs["kind"] not in ("add", "mul"):
        return None
    x, *indices, updates = node.args
    wide = [make("cast", (a,), hint=a.tensor.with_dtype(F32)) for a in (x, updates)]
    made = make("scatter", (wide[0], *indices, wide[1]), node.attrs)
    return make("cast", (made,), hint=node.type)


RULES = (
    diagonal_operand,
    *(small_power, one_plus_tanh, lone_axes, without_contraction),
    combine_wide,
)
