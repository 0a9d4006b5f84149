"""Elementary functions as MLIR text, over scalars and vectors of f32 and f64.

The wheels lack upstream's polynomial pass, and its precision is fixed. So the functions are written
out here: range reduction and a minimax polynomial, at most about 2 ulp off, with IEEE results for
inf, nan and overflow. Most of them are in sibling modules. They are branch-free, except if a lane
is out of range (huge angles and quotients, powers of negative numbers): then libm computes the
vector. All other functions, among them many of f64, call libm lane by lane.

`call` returns the text at the place of use, `definitions` the functions to append to the module
once. LLVM inlines them, which keeps printed kernels short and readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import exponential, hyperbolic_functions, trigonometry
from .erf import erf_by_table, erfinv
from .writer import BINARY_LIBM, Body, Function, call, constant, vector


def fmod_of_near(b: Body) -> tuple[str, str]:
    """Returns x - n y, with n = trunc(x / y), and a mask of lanes where that is not exact.

    The division rounds the quotient, so that n is exact, or one too large if the quotient was just
    below an integer. In both cases the difference is representable, so the fused multiply-add is
    exact.
    """
    x, y = "%x0", "%x1"
    quotient = b.div(x, y)
    near = b.fma(b.op("arith.negf", b.op("math.trunc", quotient)), y, x)
    # if n is one too large, the result has the wrong sign
    other = b.compare("olt", b.mul(b.op("math.copysign", 1.0, near), x), 0.0)
    back = b.add(near, b.op("math.copysign", y, x))
    is_one_more = b.do(f"arith.andi {other}, {b.compare('one', near, 0.0)} : {b.mask}")
    result = b.op("math.copysign", b.select(is_one_more, back, near), x)
    digits = 22 if b.element == "f32" else 51
    far = b.compare("uge", b.op("math.absf", quotient), 2.0**digits)
    endless = b.compare("uge", b.op("math.absf", y), float("inf"))
    return result, b.do(f"arith.ori {far}, {endless} : {b.mask}")


__all__ = ["Function", "call", "constant", "definitions", "supported", "vector"]

LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
INF, NAN = float("inf"), float("nan")

# coefficients, lowest power first: Lawson-weighted fits, rounded to f32 one after another
ERF_SMALL = (0.128379166, -0.376126111, 0.112833694, -0.0268438179, 0.00516832992)
ERF_SMALL += (-0.00078297552, 7.25112623e-05)
ERFC_BIG = (0.00038569342, -0.00292096566, 0.0103399307, -0.0224671867, 0.0328693055)
ERFC_BIG += (-0.0330770314, 0.0217959955, -0.00656444998, -0.00402808888, 0.00600553025)
ERFC_BIG += (-0.00204809383, -0.000873330398, 0.000582750188)
ERF_SPLIT, ERF_FITTED = 1.1, 3.92  # below: erf(x) / x - 1 in x x; above: a fit of 1 - erf(x)
ERF_END = 3.9  # from here on erf is 1: at 3.92 the rounding of the fit is as large as its value
# 2 / ln 2 / (2k + 1), and (ln 2)^k / k!: pow works in f64, where plain series are precise enough
LOG2_ATANH = tuple(2 / LN2 / (2 * k + 1) for k in range(9))

UNARY_LIBM = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "lgamma"),
    *("tgamma", "cbrt"),
)


def supported(name: str) -> bool:
    """True if `call` supports the function."""
    return name in _F32 or name in _F64 or name in UNARY_LIBM or name in BINARY_LIBM


def definitions(functions: Iterable[Function], scalef: bool) -> str:
    """Returns the functions and those they call, each once, in a stable order.

    `scalef`: use the AVX-512 instruction for x * 2^n.
    """
    pending, done, libm, text = list(functions), set[Function](), set[Function](), list[str]()
    while pending:
        f = pending.pop()
        if f in done:
            continue
        done.add(f)
        body, short = Body(f.element, f.lanes, scalef), f.name.removeprefix("libm_")
        write = (_F32 if f.element == "f32" else _F64).get(f.name)
        if write is not None:
            body.result = write(body)
        elif short in UNARY_LIBM or short in BINARY_LIBM:
            body.inline = False
            body.result = _libm(body, short, f.arity)
        else:
            raise KeyError(f"no elementary function {f.name!r} over {f.element}")
        pending += body.uses
        libm |= {Function(n, f.element, f.arity) for n in body.libm}
        text.append(body.function(f))
    declared = []
    for name, element, arity in sorted(libm):
        c = name if element == "f64" else name + "f"
        declared.append(f"llvm.func @{c}({', '.join([element] * arity)}) -> {element}\n")
    return "".join(declared + sorted(text))


_Writer = Callable[[Body], str]


def _libm(b: Body, name: str, arity: int) -> str:
    """A libm call per lane, through memory: a loop is much shorter code than extracting lanes."""
    b.libm.append(name)
    c = name if b.element == "f64" else name + "f"
    e, types = b.element, ", ".join([b.element] * arity)
    names = ", ".join(f"%x{k}" for k in range(arity))
    if b.lanes == 1:
        b.lines_of(f"%r = llvm.call @{c}({names}) : ({types}) -> {e}")
        return "%r"
    b.lines_of(f"""\
%zero = arith.constant 0 : i64
%one = arith.constant 1 : i64
%count = arith.constant {b.lanes} : i64""")
    loads = []
    for k in range(arity):
        b.lines_of(f"""\
%m{k} = llvm.alloca %one x {b.type} : (i64) -> !llvm.ptr
llvm.store %x{k}, %m{k} : {b.type}, !llvm.ptr""")
        loads.append(f"""\
  %p{k} = llvm.getelementptr %m{k}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {e}
  %a{k} = llvm.load %p{k} : !llvm.ptr -> {e}""")
    names = ", ".join(f"%a{k}" for k in range(arity))
    b.lines_of("scf.for %i = %zero to %count step %one : i64 {")
    b.lines_of("\n".join(loads))
    b.lines_of(f"""\
  %r = llvm.call @{c}({names}) : ({types}) -> {e}
  llvm.store %r, %p0 : {e}, !llvm.ptr
}}
%all = llvm.load %m0 : !llvm.ptr -> {b.type}""")
    return "%all"


def _unless(b: Body, outside: str, fast: str, name: str) -> str:
    """Returns `fast`, or libm's results for all lanes if any lane of `outside` is set."""
    any_lane = outside
    if b.lanes > 1:
        bits = b.do(f"llvm.bitcast {outside} : {b.mask} to i{b.lanes}")
        zero = b.do(f"arith.constant 0 : i{b.lanes}")
        any_lane = b.do(f"arith.cmpi ne, {bits}, {zero} : i{b.lanes}")
    f = Function(f"libm_{name}", b.element, b.lanes)
    b.uses.append(f)
    types = ", ".join([b.type] * f.arity)
    arguments = ", ".join(f"%x{k}" for k in range(f.arity))
    b.lines_of(f"""\
%checked = scf.if {any_lane} -> {b.type} {{
  %slow = llvm.call @{f.symbol}({arguments}) : ({types}) -> {b.type}
  scf.yield %slow : {b.type}
}} else {{
  scf.yield {fast} : {b.type}
}}""")
    return "%checked"


def _sigmoid(b: Body) -> str:
    return b.div(1.0, b.add(exponential.exp_of(b, b.op("arith.negf", "%x0")), 1.0))


def _erf(b: Body) -> str:
    """erf by a table, whose lookup is one AVX-512 instruction; without it, two polynomials."""
    return erf_by_table(b) if b.scalef else _erf_by_polynomials(b)


def _erf_by_polynomials(b: Body) -> str:
    x, half = "%x0", (ERF_FITTED - ERF_SPLIT) / 2
    square = b.mul(x, x)
    small = b.fma(x, b.polynomial(square, ERF_SMALL), x)
    size = b.op("math.absf", x)
    t = b.fma(b.at_most(size, ERF_END), 1 / half, -ERF_SPLIT / half - 1)
    big = b.op("math.copysign", b.sub(1.0, b.polynomial(t, ERFC_BIG)), x)
    return b.select(b.compare("olt", size, ERF_SPLIT), small, big)


def _or_libm(write: Callable[[Body], tuple[str, str]], name: str) -> _Writer:
    """Returns a writer with the result of `write`; libm's if any lane of its mask is set."""

    def checked(b: Body) -> str:
        fast, outside = write(b)
        return _unless(b, outside, fast, name)

    return checked


def _pow(b: Body) -> str:
    # in f64, so that the large error of y log2(x) before exp2 is negligible
    x, y = "%x0", "%x1"
    shifted = b.iop("subi", b.to_bits(x), 0x3F3504F3)
    e = b.do(f"arith.sitofp {b.iop('shrsi', shifted, 23)} : {b.bits} to {b.type}")
    m = b.from_bits(b.iop("addi", b.iop("andi", shifted, 0x7FFFFF), 0x3F3504F3))
    w = b.of_f64()
    wide = b.wide(m)
    s = w.div(w.sub(wide, 1.0), w.add(wide, 1.0))
    log2 = w.fma(s, w.polynomial(w.mul(s, s), LOG2_ATANH), b.wide(e))
    t = w.at_most(w.at_least(w.mul(b.wide(y), log2), -300.0), 300.0)
    magic = 6755399441055744.0
    z = w.add(t, magic)
    r = w.sub(t, w.sub(z, magic))
    series, term = [1.0], 1.0
    for k in range(1, 11):
        term *= LN2 / k
        series.append(term)
    power = w.from_bits(w.iop("shli", w.iop("addi", w.to_bits(z), 1023), 52))
    fast = b.narrow(w.mul(w.polynomial(r, series), power))
    # bases that are zero, negative, subnormal, inf or nan, and exponents that are inf or nan
    base = b.compare("ult", x, 1.17549435e-38)
    far = b.compare("uge", b.op("math.absf", y), INF)
    huge = b.compare("uge", x, INF)
    mask = b.do(f"arith.ori {base}, {far} : {b.mask}")
    mask = b.do(f"arith.ori {mask}, {huge} : {b.mask}")
    return _unless(b, mask, fast, "pow")


def _rsqrt(b: Body) -> str:
    return b.div(1.0, b.op("math.sqrt", "%x0"))


def _signed(write: _Writer) -> _Writer:
    """A function that has the sign of its operand, also for zeros."""
    return lambda b: b.op("math.copysign", write(b), "%x0")


_F32: dict[str, _Writer] = {
    "exp": lambda b: exponential.exp_of(b, "%x0"),
    "exp2": exponential.exp2,
    "expm1": _signed(lambda b: exponential.expm1_of(b, "%x0")),
    "sigmoid": _sigmoid,
    "log": lambda b: exponential.log_of(b, "%x0"),
    "log2": exponential.log_base(LOG2E, 1.0),
    "log10": exponential.log_base(0.4342944819032518, 0.30102999566398120),
    "log1p": _signed(lambda b: exponential.log1p_of(b, "%x0")),
    "erf": _erf,
    "erfinv": _signed(erfinv),
    "sin": _or_libm(trigonometry.sin, "sin"),
    "cos": _or_libm(trigonometry.cos, "cos"),
    "tan": _or_libm(trigonometry.tan, "tan"),
    "asin": _signed(trigonometry.asin),
    "acos": trigonometry.acos,
    "atan": _signed(trigonometry.atan),
    "atan2": _signed(trigonometry.atan2),
    "sinh": _signed(hyperbolic_functions.sinh),
    "cosh": hyperbolic_functions.cosh,
    "tanh": _signed(hyperbolic_functions.tanh),
    "asinh": _signed(hyperbolic_functions.asinh),
    "acosh": hyperbolic_functions.acosh,
    "atanh": _signed(hyperbolic_functions.atanh),
    "pow": _pow,
    "fmod": _or_libm(fmod_of_near, "fmod"),
    "rsqrt": _rsqrt,
}
_OF_BOTH = ("exp", "expm1", "sigmoid", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh")
_OF_BOTH += ("erfinv",)
_F64: dict[str, _Writer] = {name: _F32[name] for name in (*_OF_BOTH, "fmod", "rsqrt")}
