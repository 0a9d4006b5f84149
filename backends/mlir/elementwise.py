"""Prints an elementwise op of the loop level as arith, math or vector statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stack.errors import StackError
from stack.ir.node import Node
from stack.ir.traits import is_loop_sum
from stack.ir.types import BF16, DTYPES, F16, F32, I32, DType
from stack.target import Cpu

from . import math as functions
from .writer import BINARY_LIBM, Function, call

F64, U32 = DTYPES["f64"], DTYPES["u32"]

_COMPARE_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
# an op as a template: {0} and {1} are operands, {t} their type, {s} is s(igned) or u(nsigned)
_FLOAT = {
    # LLVM may compute a sum of products with FMA, one rounding for two
    **{op: f"arith.{op}f {{0}}, {{1}} fastmath<contract> : {{t}}" for op in ("add", "sub", "mul")},
    **{f"{op} alone": f"arith.{op}f {{0}}, {{1}} : {{t}}" for op in ("add", "sub", "mul")},
    # a nan in the first operand needs an extra compare, which here is off the chain of maxima
    "max": "arith.maximumf {1}, {0} fastmath<nsz> : {t}",
    "min": "arith.minimumf {1}, {0} fastmath<nsz> : {t}",
    "div": "arith.divf {0}, {1} : {t}", "neg": "arith.negf {0} : {t}",
    "abs": "math.absf {0} : {t}", "floor": "math.floor {0} : {t}", "ceil": "math.ceil {0} : {t}",
    "round": "math.roundeven {0} : {t}", "trunc": "math.trunc {0} : {t}",
    "sqrt": "math.sqrt {0} : {t}", "isnan": "arith.cmpf uno, {0}, {0} : {t}",
}  # fmt: skip
_BOOL = {
    "add": "arith.ori {0}, {1} : {t}", "or": "arith.ori {0}, {1} : {t}",
    "max": "arith.ori {0}, {1} : {t}", "mul": "arith.andi {0}, {1} : {t}",
    "and": "arith.andi {0}, {1} : {t}", "min": "arith.andi {0}, {1} : {t}",
    "xor": "arith.xori {0}, {1} : {t}",
}  # fmt: skip
_INTEGER = {
    **{op: f"arith.{op}i {{0}}, {{1}} : {{t}}" for op in ("add", "sub", "mul", "and", "or", "xor")},
    "max": "arith.max{s}i {0}, {1} : {t}", "min": "arith.min{s}i {0}, {1} : {t}",
}  # fmt: skip


class Unprintable(StackError):
    """Raised for an op that cannot be printed; its group is computed in another way."""


class Scope(Protocol):
    """The text that statements are appended to: of a kernel, or of an elementary function."""

    uses: set[Function]
    cpu: Cpu

    def do(self, text: str) -> str:
        """Append a statement; returns the name of its result."""
        ...

    def number(self, value: float, dtype: DType, lanes: int) -> str:
        """Returns a constant; a vector with it in every lane if `lanes` is not 0."""
        ...


def is_short(dtype: DType) -> bool:
    """True for 16-bit floats: they are stored as bits and computed in f32."""
    return dtype.is_float and dtype.bits == 16


def shaped(dtype: DType, lanes: int = 0) -> str:
    """The MLIR type of `lanes` values in registers; 0 is a scalar.

    16-bit floats are integers of the same width. LLVM cannot compile every vector of them on every
    CPU: it aborts if 9, 17 or 33 bf16 are live across basic blocks.
    """
    if dtype.kind == "b":
        kind = "i1"
    elif dtype.kind == "c":
        raise Unprintable(f"no code for {dtype}")
    else:
        kind = dtype.name if dtype.is_float and not is_short(dtype) else f"i{dtype.bits}"
    return f"vector<{lanes}x{kind}>" if lanes else kind


def emit(scope: Scope, node: Node, args: Sequence[str], lanes: int) -> str:
    """Print an elementwise node and return its value; `args` already have the node's lanes."""
    special = _SPECIAL.get(node.op)
    if special is not None:
        return special(scope, node, args, lanes)
    dtype, op = node.args[0].dtype, node.op
    if dtype.is_float and f"{op} alone" in _FLOAT and not _contracts(node):
        op = f"{op} alone"
    return apply(scope, op, dtype, args, lanes)


def _contracts(node: Node) -> bool:
    """True if LLVM may round a product and what is added to it once: in the sums of loops only.

    Two kernels may compute a value each, say a product that max pooling compares with its largest.
    LLVM fuses where it sees a gain, so without this rule the two could differ in the last bit. An
    f32 represents a product of f16 values exactly: one rounding would omit one that was asked for,
    and on CPUs with f16 arithmetic, LLVM would undo the cast.
    """
    if any(a.op == "cast" and a.args[0].dtype == F16 for a in node.args):
        return False
    return node.op == "mul" or any(map(is_loop_sum, node.args))


def apply(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    """Prints an op on values of one type and returns its result.

    Raises Unprintable if there is no code for it, and for 16-bit floats.
    """
    if is_short(dtype):
        raise Unprintable(f"{op.split()[0]} of {dtype}: kernels compute in f32")
    if op in _COMPARE_FLOAT:
        return _compare(scope, op, dtype, args, lanes)
    kind = "float" if dtype.is_float else "bool" if dtype.kind == "b" else "integer"
    if op in _TEXTS[kind]:
        sign = "s" if dtype.kind == "i" else "u"
        return scope.do(_TEXTS[kind][op].format(*args, t=shaped(dtype, lanes), s=sign))
    steps = _STEPS[kind].get(op, _function)
    return steps(scope, op, dtype, args, lanes)


def _remainder(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    return _function(scope, "fmod", dtype, args, lanes)


def _is_finite(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    t = shaped(dtype, lanes)
    size = scope.do(f"math.absf {args[0]} : {t}")
    inf = scope.number(float("inf"), dtype, lanes)
    return scope.do(f"arith.cmpf olt, {size}, {inf} : {t}")


def _function(scope: Scope, name: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    if dtype.name not in ("f32", "f64") or not (functions.supported(name) or name in BINARY_LIBM):
        raise Unprintable(f"no code for {name} of {dtype}")
    if lanes == 1:  # functions for one lane take scalars
        one, t = shaped(dtype, 1), shaped(dtype)
        parts = [scope.do(f"vector.extract {a}[0] : {t} from {one}") for a in args]
        return scope.do(
            f"vector.broadcast {_function(scope, name, dtype, parts, 0)} : {t} to {one}"
        )
    scope.uses.add(Function(name, dtype.name, max(lanes, 1)))
    return scope.do(call("", name, dtype.name, max(lanes, 1), *args).removeprefix(" = "))


def _sign(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    t, x = shaped(dtype, lanes), args[0]
    zero, one = scope.number(0.0, dtype, lanes), scope.number(1.0, dtype, lanes)
    signed = scope.do(f"math.copysign {one}, {x} : {t}")
    # zero and nan are unchanged
    other = scope.do(f"arith.cmpf one, {x}, {zero} : {t}")
    return _choose(scope, other, signed, x, dtype, lanes)


def _choose(scope: Scope, test: str, yes: str, no: str, dtype: DType, lanes: int) -> str:
    t = shaped(dtype, lanes)
    kinds = f"vector<{lanes}xi1>, {t}" if lanes else t
    return scope.do(f"arith.select {test}, {yes}, {no} : {kinds}")


def _compare(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    t = shaped(dtype, lanes)
    if dtype.is_float:
        return scope.do(f"arith.cmpf {_COMPARE_FLOAT[op]}, {args[0]}, {args[1]} : {t}")
    signed = op if op in ("eq", "ne") else ("s" if dtype.kind == "i" else "u") + op
    return scope.do(f"arith.cmpi {signed}, {args[0]}, {args[1]} : {t}")


def _negated(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    t = shaped(dtype, lanes)
    inner = f"dense<true> : {t}" if lanes else "true"
    return scope.do(f"arith.xori {args[0]}, {scope.do(f'arith.constant {inner}')} : {t}")


def _minus(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    zero = scope.number(0, dtype, lanes)
    return scope.do(f"arith.subi {zero}, {args[0]} : {shaped(dtype, lanes)}")


def _flipped(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    ones = scope.number(-1, dtype, lanes)
    return scope.do(f"arith.xori {args[0]}, {ones} : {shaped(dtype, lanes)}")


def _size(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    if dtype.kind == "u":
        return args[0]
    return scope.do(f"math.absi {args[0]} : {shaped(dtype, lanes)}")


def _integer_sign(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    zero, one = scope.number(0, dtype, lanes), scope.number(1, dtype, lanes)
    above = _compare(scope, "gt", dtype, [args[0], zero], lanes)
    part = _choose(scope, above, one, zero, dtype, lanes)
    below = _compare(scope, "lt", dtype, [args[0], zero], lanes)
    return _choose(scope, below, scope.number(-1, dtype, lanes), part, dtype, lanes)


def _shift(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    """A shift, defined for all counts: by too many or a negative number, it shifts all bits out."""
    t = shaped(dtype, lanes)
    x, y = args
    # as an unsigned number, a negative count is large
    most = scope.number(dtype.bits - 1, dtype, lanes)
    inside = scope.do(f"arith.cmpi ule, {y}, {most} : {t}")
    count = _choose(scope, inside, y, most, dtype, lanes)
    if op == "shr" and dtype.kind == "i":
        return scope.do(f"arith.shrsi {x}, {count} : {t}")
    out = scope.do(f"arith.{'shli' if op == 'shl' else 'shrui'} {x}, {count} : {t}")
    return _choose(scope, inside, out, scope.number(0, dtype, lanes), dtype, lanes)


def _power(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    """Integer power by repeated squaring, with wraparound as in products.

    A negative exponent gives 0, except for 1 and -1, whose powers alternate: all bits of the
    exponent but the lowest square the base to 1.
    """
    t = shaped(dtype, lanes)
    base, y = args
    zero, one = scope.number(0, dtype, lanes), scope.number(1, dtype, lanes)
    out = one
    for bit in range(dtype.bits):
        if bit:
            base = scope.do(f"arith.muli {base}, {base} : {t}")
        mask = scope.number(1 << bit if bit < dtype.bits - 1 or dtype.kind == "u" else -1 << bit,
                            dtype, lanes)  # fmt: skip
        taken = scope.do(f"arith.andi {y}, {mask} : {t}")
        test = _compare(scope, "ne", dtype, [taken, zero], lanes)
        more = scope.do(f"arith.muli {out}, {base} : {t}")
        out = _choose(scope, test, more, out, dtype, lanes)
    if dtype.kind == "u":
        return out
    x = args[0]
    low = _compare(scope, "lt", dtype, [y, zero], lanes)
    minus = _compare(scope, "eq", dtype, [x, scope.number(-1, dtype, lanes)], lanes)
    unit = _compare(scope, "eq", dtype, [x, one], lanes)
    kept = _choose(scope, minus, out, _choose(scope, unit, one, zero, dtype, lanes), dtype, lanes)
    return _choose(scope, low, kept, out, dtype, lanes)


def _divide(scope: Scope, op: str, dtype: DType, args: Sequence[str], lanes: int) -> str:
    """Integer division that never traps: by 0 it does as XLA, and the least integer / -1 wraps."""
    t = shaped(dtype, lanes)
    sign = "s" if dtype.kind == "i" else "u"
    x, y = args
    zero, one = scope.number(0, dtype, lanes), scope.number(1, dtype, lanes)
    none = _compare(scope, "eq", dtype, [y, zero], lanes)
    safe = _choose(scope, none, one, y, dtype, lanes)
    if sign == "s":
        turn = _compare(scope, "eq", dtype, [y, scope.number(-1, dtype, lanes)], lanes)
        safe = _choose(scope, turn, one, safe, dtype, lanes)
    name = f"arith.{op}{sign}i"
    out = scope.do(f"{name} {x}, {safe} : {t}")
    if sign == "s" and op == "div":
        minus = scope.do(f"arith.subi {zero}, {x} : {t}")
        out = _choose(scope, turn, minus, out, dtype, lanes)  # pyright: ignore[reportPossiblyUnboundVariable]
    by_zero = x if op == "rem" else scope.number(-1, dtype, lanes)
    return _choose(scope, none, by_zero, out, dtype, lanes)


def _select(scope: Scope, node: Node, args: Sequence[str], lanes: int) -> str:
    return _choose(scope, args[0], args[1], args[2], node.dtype, lanes)


def _fma(scope: Scope, node: Node, args: Sequence[str], lanes: int) -> str:
    return scope.do(f"math.fma {', '.join(args)} : {shaped(node.dtype, lanes)}")


def _bitcast(scope: Scope, node: Node, args: Sequence[str], lanes: int) -> str:
    source, target = shaped(node.args[0].dtype, lanes), shaped(node.dtype, lanes)
    return (
        args[0] if source == target else scope.do(f"arith.bitcast {args[0]} : {source} to {target}")
    )


def _cast(scope: Scope, node: Node, args: Sequence[str], lanes: int) -> str:
    return cast(scope, args[0], node.args[0].dtype, node.dtype, lanes)


def cast(scope: Scope, x: str, source: DType, target: DType, lanes: int) -> str:
    """Convert a value: float to integer truncates, anything to bool compares with 0."""
    if source == target:
        return x
    if is_short(source):
        return cast(scope, _widen(scope, x, source, lanes), F32, target, lanes)
    if is_short(target):
        if source.bits == 64 and source.is_float and target == F16:
            return _round_to_odd(scope, x, lanes)
        return _narrow(scope, cast(scope, x, source, F32, lanes), target, lanes)
    f, t = shaped(source, lanes), shaped(target, lanes)
    if target.kind == "b":
        return _compare(scope, "ne", source, [x, scope.number(0, source, lanes)], lanes)
    if source.is_float and target.is_float:
        name = "extf" if target.bits > source.bits else "truncf"
        return scope.do(f"arith.{name} {x} : {f} to {t}")
    if source.is_float:
        if target.bits < 32:  # wrap like C: convert through int
            return cast(scope, cast(scope, x, source, I32, lanes), I32, target, lanes)
        name = "fptosi" if target.kind == "i" else "fptoui"
        return scope.do(f"arith.{name} {x} : {f} to {t}")
    if target.is_float:
        name = "sitofp" if source.kind == "i" else "uitofp"
        return scope.do(f"arith.{name} {x} : {f} to {t}")
    source_bits = 1 if source.kind == "b" else source.bits
    if target.bits == source_bits:
        return x
    if target.bits < source_bits:
        return scope.do(f"arith.trunci {x} : {f} to {t}")
    name = "extsi" if source.kind == "i" else "extui"
    return scope.do(f"arith.{name} {x} : {f} to {t}")


def as_float(scope: Scope, bits: str, dtype: DType, lanes: int) -> tuple[str, str]:
    """Bitcasts a 16-bit float, held as an integer, to LLVM's float type for one instruction.

    Returns the value and the name of the type.
    """
    t = f"vector<{lanes}x{dtype.name}>" if lanes else dtype.name
    return scope.do(f"arith.bitcast {bits} : {shaped(dtype, lanes)} to {t}"), t


def _widen(scope: Scope, bits: str, dtype: DType, lanes: int) -> str:
    """Converts a 16-bit float to f32; a bf16 is its upper half."""
    i, f = shaped(U32, lanes), shaped(F32, lanes)
    if dtype == F16:
        x, t = as_float(scope, bits, dtype, lanes)
        return scope.do(f"arith.extf {x} : {t} to {f}")
    upper = scope.do(f"arith.extui {bits} : {shaped(dtype, lanes)} to {i}")
    moved = scope.do(f"arith.shli {upper}, {scope.number(16, U32, lanes)} : {i}")
    return scope.do(f"arith.bitcast {moved} : {i} to {f}")


def _narrow(scope: Scope, x: str, dtype: DType, lanes: int) -> str:
    """Rounds an f32 to a 16-bit float."""
    if dtype != F16 and "avx512bf16" not in scope.cpu.features:
        return _narrow_to_bf16(scope, x, lanes)
    t = f"vector<{lanes}x{dtype.name}>" if lanes else dtype.name
    made = scope.do(f"arith.truncf {x} : {shaped(F32, lanes)} to {t}")
    return scope.do(f"arith.bitcast {made} : {t} to {shaped(dtype, lanes)}")


def _narrow_to_bf16(scope: Scope, x: str, lanes: int) -> str:
    """Rounds f32 to bf16 by integer ops.

    Without an instruction for it, LLVM would call a function that does not exist here. The code
    adds half of the last kept digit, one bit less if that digit is even, and takes the upper half.
    As the addition could destroy a nan, nans are handled separately.
    """
    i, f = shaped(U32, lanes), shaped(F32, lanes)
    sixteen = scope.number(16, U32, lanes)
    bits = scope.do(f"arith.bitcast {x} : {f} to {i}")
    upper = scope.do(f"arith.shrui {bits}, {sixteen} : {i}")
    odd = scope.do(f"arith.andi {upper}, {scope.number(1, U32, lanes)} : {i}")
    half = scope.do(f"arith.addi {odd}, {scope.number(0x7FFF, U32, lanes)} : {i}")
    rounded = scope.do(f"arith.addi {bits}, {half} : {i}")
    quiet = scope.do(f"arith.ori {bits}, {scope.number(0x400000, U32, lanes)} : {i}")
    is_nan = scope.do(f"arith.cmpf uno, {x}, {x} : {f}")
    chosen = _choose(scope, is_nan, quiet, rounded, U32, lanes)
    moved = scope.do(f"arith.shrui {chosen}, {sixteen} : {i}")
    return scope.do(f"arith.trunci {moved} : {i} to {shaped(BF16, lanes)}")


def _round_to_odd(scope: Scope, x: str, lanes: int) -> str:
    """Rounds f64 to f16 once. x86 has no instruction, and LLVM would call a missing function.

    The f32 in between is rounded to odd, so that it is never halfway by accident. (bf16 is rounded
    twice in the reference, and in torch.)
    """
    middle = cast(scope, x, F64, F32, lanes)
    d, f, i = (shaped(t, lanes) for t in (F64, F32, I32))
    back = scope.do(f"arith.extf {middle} : {f} to {d}")
    bits = scope.do(f"arith.bitcast {middle} : {f} to {i}")
    size, exact = scope.do(f"math.absf {back} : {d}"), scope.do(f"math.absf {x} : {d}")
    away = scope.do(f"arith.cmpf ogt, {size}, {exact} : {d}")
    one = scope.number(1, I32, lanes)
    below = scope.do(f"arith.subi {bits}, {one} : {i}")
    toward = _choose(scope, away, below, bits, I32, lanes)
    odd = scope.do(f"arith.ori {toward}, {one} : {i}")
    inexact = scope.do(f"arith.cmpf une, {back}, {x} : {d}")
    rounded = _choose(scope, inexact, odd, toward, I32, lanes)
    return _narrow(scope, scope.do(f"arith.bitcast {rounded} : {i} to {f}"), F16, lanes)


Steps = Callable[[Scope, str, DType, Sequence[str], int], str]
_TEXTS = {"float": _FLOAT, "bool": _BOOL, "integer": _INTEGER}
_STEPS: dict[str, dict[str, Steps]] = {
    "float": {"rem": _remainder, "isfinite": _is_finite, "sign": _sign},
    "bool": {"not": _negated},
    "integer": {
        "shl": _shift, "shr": _shift, "pow": _power, "div": _divide, "rem": _divide, "neg": _minus,
        "not": _flipped, "abs": _size, "sign": _integer_sign,
    },
}  # fmt: skip
_SPECIAL: dict[str, Callable[[Scope, Node, Sequence[str], int], str]] = {
    "select": _select,
    "fma": _fma,
    "bitcast": _bitcast,
    "cast": _cast,
}
