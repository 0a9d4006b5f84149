"""Elementary functions as MLIR text, over scalars and vectors of f32 and f64.

Upstream's polynomial pass is missing from the wheels, and its precision is not ours to choose, so
the f32 functions are written out here: range reduction and a minimax polynomial, at most about 2
ulp off, with the IEEE results for inf, nan and overflow. They are branch-free except where a lane
falls outside the range (huge angles and quotients, powers of negative numbers): then libm does the
vector. Everything else, and all of f64, calls libm lane by lane.

`call` gives the text at the place of use, `definitions` the functions to append to the module
once. LLVM inlines them, which keeps the printed kernels short and readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .avx512 import above_floor, scaled
from .erf import erf_by_table
from .fmod import fmod_of_near
from .writer import BINARY_LIBM, MAGIC, Body, Function, call, constant, vector

__all__ = ["Function", "call", "constant", "definitions", "supported", "vector"]

LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
INF, NAN = float("inf"), float("nan")

# Coefficients, lowest power first: Lawson-weighted fits, rounded to f32 one after the other.
EXP_Q = (0.5, 0.166665196, 0.0416664034, 0.00836883113, 0.00139405322)
EXPM1_Q = (0.5, 0.166666672, 0.0416664891, 0.00833320804, 0.00139326858, 0.000199442555)
EXP2_Q = (0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.00133909844, 0.000154628797)
EXP2_FLOOR_Q = (0.69314706, 0.24022909, 0.055486184, 0.009673775, 0.001248229, 0.00021565972)
TANH_P = (-0.333333254, 0.133330032, -0.0539227128, 0.0215780102, -0.00789591391, 0.00190422707)
LOG_P = (0.333333135, -0.250000089, 0.200020716, -0.166679904, 0.142203629, -0.124062084)
LOG_P += (0.118834712, -0.116701826, 0.0674953908)
ERF_SMALL = (0.128379166, -0.376126111, 0.112833694, -0.0268438179, 0.00516832992)
ERF_SMALL += (-0.00078297552, 7.25112623e-05)
ERFC_BIG = (0.00038569342, -0.00292096566, 0.0103399307, -0.0224671867, 0.0328693055)
ERFC_BIG += (-0.0330770314, 0.0217959955, -0.00656444998, -0.00402808888, 0.00600553025)
ERFC_BIG += (-0.00204809383, -0.000873330398, 0.000582750188)
ERF_SPLIT, ERF_END = 1.1, 3.92  # below, erf(x) / x - 1 of x x; above, 1 - erf(x); then 1
SIN_P = (-0.166666672, 0.00833338033, -0.000198535126, 2.83754275e-06)
COS_P = (0.0416666456, -0.00138873013, 2.44306684e-05)
# 2 / ln 2 / (2k + 1), and (ln 2)^k / k!: pow works in f64, where plain series are good enough.
LOG2_ATANH = tuple(2 / LN2 / (2 * k + 1) for k in range(9))

UNARY_LIBM = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "lgamma"),
    *("tgamma", "cbrt"),
)


def supported(name: str) -> bool:
    """Whether `call` knows the function."""
    return name in _F32 or name in _F64 or name in UNARY_LIBM or name in BINARY_LIBM


def definitions(functions: Iterable[Function], scalef: bool) -> str:
    """The functions and what they call, each once, in a stable order.

    `scalef`: use the AVX-512 instruction for x * 2^n.
    """
    pending, done, libm, text = list(functions), set[Function](), set[Function](), list[str]()
    while pending:
        f = pending.pop()
        if f in done:
            continue
        done.add(f)
        body = _define(f, scalef)
        pending += body.uses
        libm |= {Function(n, f.element, f.arity) for n in body.libm}
        text.append(body.function(f))
    declared = []
    for name, element, arity in sorted(libm):
        c = name if element == "f64" else name + "f"
        declared.append(f"llvm.func @{c}({', '.join([element] * arity)}) -> {element}\n")
    return "".join(declared + sorted(text))


_Writer = Callable[[Body], str]


def _define(f: Function, scalef: bool) -> Body:
    body = Body(f.element, f.lanes, scalef)
    short = f.name.removeprefix("libm_")
    table = _F32 if f.element == "f32" else _F64
    if f.name in table:
        body.result = table[f.name](body)
    elif short in UNARY_LIBM or short in BINARY_LIBM:
        body.inline = False
        body.result = _libm(body, short, f.arity)
    else:
        raise KeyError(f"no elementary function {f.name!r} over {f.element}")
    return body


def _libm(b: Body, name: str, arity: int) -> str:
    """A libm call per lane, through memory: a loop is much shorter code than extracts."""
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


def _unless(b: Body, outside: str, fast: str, name: str, arguments: str) -> str:
    """`fast`, but libm for the whole vector if the mask `outside` has a lane."""
    any_lane = outside
    if b.lanes > 1:
        bits = b.do(f"llvm.bitcast {outside} : {b.mask} to i{b.lanes}")
        zero = b.do(f"arith.constant 0 : i{b.lanes}")
        any_lane = b.do(f"arith.cmpi ne, {bits}, {zero} : i{b.lanes}")
    f = Function(f"libm_{name}", b.element, b.lanes)
    b.uses.append(f)
    types = ", ".join([b.type] * f.arity)
    b.lines_of(f"""\
%checked = scf.if {any_lane} -> {b.type} {{
  %slow = llvm.call @{f.symbol}({arguments}) : ({types}) -> {b.type}
  scf.yield %slow : {b.type}
}} else {{
  scf.yield {fast} : {b.type}
}}""")
    return "%checked"


def _times_power(b: Body, p: str, z: str) -> str:
    """p * 2^n with gradual underflow and overflow; z is n + MAGIC, |n| < 255."""
    # Two factors of half the exponent each, so that neither leaves the normal range.
    n = b.iop("subi", b.to_bits(z), b.to_bits(b.f(MAGIC)))
    half = b.iop("shrsi", n, 1)
    rest = b.iop("subi", n, half)
    first = b.from_bits(b.iop("shli", b.iop("addi", half, 127), 23))
    second = b.from_bits(b.iop("shli", b.iop("addi", rest, 127), 23))
    return b.mul(b.mul(p, first), second)


def _has_scalef(b: Body) -> bool:
    return b.scalef and b.lanes in (4, 8, 16, 32, 64)


def _powers(b: Body, x: str, least: float, near: Callable[[str], tuple[str, str]]) -> str:
    """A power that is 0 where x is below `least`. `near` gives n + MAGIC and p of p * 2^n."""
    if _has_scalef(b):
        z, p = near(x)
        return scaled(b, p, b.sub(z, MAGIC), x, least)
    z, p = near(b.at_least(x, least))
    return _times_power(b, p, z)


def _reduce(b: Body, x: str) -> tuple[str, str]:
    """z = n + MAGIC and r with x = n ln 2 + r, |r| <= ln 2 / 2."""
    z = b.fma(x, LOG2E, MAGIC)
    n = b.sub(z, MAGIC)
    return z, b.fma(n, -1.42860677e-06, b.fma(n, -0.693145752, x))  # ln 2 in two parts


def _exp_of(b: Body, x: str) -> str:
    def near(x: str) -> tuple[str, str]:
        z, r = _reduce(b, b.at_most(x, 89.0))
        return z, b.add(b.fma(b.mul(r, r), b.polynomial(r, EXP_Q), r), 1.0)

    return _powers(b, x, -105.0, near)


def _exp2(b: Body) -> str:
    if _has_scalef(b):  # which takes the floor itself
        r = above_floor(b, "%x0")
        return scaled(b, b.fma(r, b.polynomial(r, EXP2_FLOOR_Q), 1.0), "%x0", "%x0", -151.0)

    def near(x: str) -> tuple[str, str]:
        x = b.at_most(x, 129.0)
        z = b.add(x, MAGIC)
        r = b.sub(x, b.sub(z, MAGIC))
        return z, b.fma(r, b.polynomial(r, EXP2_Q), 1.0)

    return _powers(b, "%x0", -151.0, near)


def _expm1_of(b: Body, x: str) -> str:
    # Below -18 the result is -1. Half of 2^n, so that n = 128 does not overflow too early.
    z, r = _reduce(b, b.at_most(b.at_least(x, -18.0), 89.0))
    p = b.fma(b.mul(r, r), b.polynomial(r, EXPM1_Q), r)
    half = b.from_bits(b.iop("shli", b.iop("addi", b.to_bits(z), 126), 23))
    return b.mul(b.fma(half, p, b.sub(half, 0.5)), 2.0)


def _tanh(b: Body) -> str:
    size, square = b.op("math.absf", "%x0"), b.mul("%x0", "%x0")
    near = b.fma(b.mul("%x0", square), b.polynomial(square, TANH_P), "%x0")
    part = b.div(2.0, b.add(_exp_of(b, b.mul(size, 2.0)), 1.0))
    return b.select(b.compare("olt", size, 0.7), near, b.sub(1.0, part))


def _sigmoid(b: Body) -> str:
    return b.div(1.0, b.add(_exp_of(b, b.op("arith.negf", "%x0")), 1.0))


def _log_parts(b: Body, x: str) -> tuple[str, str]:
    """e and log(m) with x = m 2^e, m around 1; x positive and finite."""
    tiny = b.compare("olt", x, 1.17549435e-38)
    scaled = b.select(tiny, b.mul(x, 8388608.0), x)
    shifted = b.iop("subi", b.to_bits(scaled), 0x3F3504F3)  # sqrt(1/2)
    exponent = b.iop("shrsi", shifted, 23)
    e = b.do(f"arith.sitofp {exponent} : {b.bits} to {b.type}")
    e = b.sub(e, b.select(tiny, 23.0, 0.0))
    m = b.from_bits(b.iop("addi", b.iop("andi", shifted, 0x7FFFFF), 0x3F3504F3))
    f = b.sub(m, 1.0)
    square = b.mul(f, f)
    tail = b.fma(b.mul(f, square), b.polynomial(f, LOG_P), b.mul(square, -0.5))
    return e, b.add(f, tail)


def _log_ends(b: Body, x: str, inside: str) -> str:
    above = b.select(b.compare("olt", x, INF), inside, x)  # inf and nan stay
    zero = b.select(b.compare("oeq", x, 0.0), -INF, above)
    return b.select(b.compare("olt", x, 0.0), NAN, zero)


def _log_of(b: Body, x: str) -> str:
    e, log_m = _log_parts(b, x)
    return _log_ends(b, x, b.fma(e, LN2, log_m))


def _log_base(log_of_e: float, log_of_2: float) -> _Writer:
    def write(b: Body) -> str:
        e, log_m = _log_parts(b, "%x0")
        inside = b.fma(log_m, log_of_e, e if log_of_2 == 1.0 else b.mul(e, log_of_2))
        return _log_ends(b, "%x0", inside)

    return write


def _log1p(b: Body) -> str:
    # log(u) + what rounding 1 + x to u lost, over u.
    u = b.add("%x0", 1.0)
    below = b.sub("%x0", b.sub(u, 1.0))
    above = b.sub(1.0, b.sub(u, "%x0"))
    lost = b.div(b.select(b.compare("olt", "%x0", 1.0), below, above), u)
    log_u = _log_of(b, u)
    plain = b.compare("one", b.op("math.absf", log_u), INF)
    return b.select(plain, b.add(log_u, lost), log_u)


def _erf(b: Body) -> str:
    """A table's entry is one instruction of AVX-512; elsewhere two polynomials take less."""
    return erf_by_table(b) if b.scalef else _erf_by_polynomials(b)


def _erf_by_polynomials(b: Body) -> str:
    x, half = "%x0", (ERF_END - ERF_SPLIT) / 2
    square = b.mul(x, x)
    small = b.fma(x, b.polynomial(square, ERF_SMALL), x)
    size = b.op("math.absf", x)
    t = b.fma(b.at_most(size, ERF_END), 1 / half, -ERF_SPLIT / half - 1)
    big = b.op("math.copysign", b.sub(1.0, b.polynomial(t, ERFC_BIG)), x)
    return b.select(b.compare("olt", size, ERF_SPLIT), small, big)


def _wide(b: Body, x: str) -> str:
    return b.do(f"arith.extf {x} : {b.type} to {vector('f64', b.lanes)}")


def _narrow(b: Body, x: str) -> str:
    return b.do(f"arith.truncf {x} : {vector('f64', b.lanes)} to {b.type}")


def _circular(name: str, turn: int) -> _Writer:
    def write(b: Body) -> str:
        # Reducing in f64 keeps every bit up to 1e8 with two constants; beyond, libm.
        w = Body("f64", b.lanes, False)
        w.lines, w.known = b.lines, b.known
        x = _wide(b, "%x0")
        magic = 6755399441055744.0
        z = w.fma(x, 0.6366197723675814, magic)
        n = w.sub(z, magic)
        r = w.fma(n, -6.123233995736766e-17, w.fma(n, -1.5707963267948966, x))
        quarter = w.to_bits(z)
        q = b.do(f"arith.trunci {quarter} : {w.bits} to {b.bits}")
        q = b.iop("addi", q, turn) if turn else q
        r = _narrow(b, r)
        s = b.mul(r, r)
        sine = b.fma(b.mul(r, s), b.polynomial(s, SIN_P), r)
        sine = b.op("math.copysign", sine, r)  # of a zero, too
        cosine = b.fma(b.mul(s, s), b.polynomial(s, COS_P), b.fma(s, -0.5, 1.0))
        odd = b.do(f"arith.trunci {q} : {b.bits} to {b.mask}")
        sign = b.iop("shli", b.iop("andi", q, 2), 30)
        value = b.to_bits(b.select(odd, cosine, sine))
        fast = b.from_bits(b.iop("xori", value, sign))
        outside = b.compare("uge", b.op("math.absf", "%x0"), 1e8)
        return _unless(b, outside, fast, name, "%x0")

    return write


def _pow(b: Body) -> str:
    # In f64, so that the error of y log2(x), which is large before exp2, does not show.
    x, y = "%x0", "%x1"
    shifted = b.iop("subi", b.to_bits(x), 0x3F3504F3)
    e = b.do(f"arith.sitofp {b.iop('shrsi', shifted, 23)} : {b.bits} to {b.type}")
    m = b.from_bits(b.iop("addi", b.iop("andi", shifted, 0x7FFFFF), 0x3F3504F3))
    w = Body("f64", b.lanes, False)
    w.lines, w.known = b.lines, b.known
    wide = _wide(b, m)
    s = w.div(w.sub(wide, 1.0), w.add(wide, 1.0))
    log2 = w.fma(s, w.polynomial(w.mul(s, s), LOG2_ATANH), _wide(b, e))
    t = w.at_most(w.at_least(w.mul(_wide(b, y), log2), -300.0), 300.0)
    magic = 6755399441055744.0
    z = w.add(t, magic)
    r = w.sub(t, w.sub(z, magic))
    series, term = [1.0], 1.0
    for k in range(1, 11):
        term *= LN2 / k
        series.append(term)
    power = w.from_bits(w.iop("shli", w.iop("addi", w.to_bits(z), 1023), 52))
    fast = _narrow(b, w.mul(w.polynomial(r, series), power))
    # Zero, negative, subnormal, inf and nan bases, and inf and nan exponents.
    base = b.compare("ult", x, 1.17549435e-38)
    far = b.compare("uge", b.op("math.absf", y), INF)
    huge = b.compare("uge", x, INF)
    mask = b.do(f"arith.ori {base}, {far} : {b.mask}")
    mask = b.do(f"arith.ori {mask}, {huge} : {b.mask}")
    return _unless(b, mask, fast, "pow", "%x0, %x1")


def _fmod(b: Body) -> str:
    fast, outside = fmod_of_near(b)
    return _unless(b, outside, fast, "fmod", "%x0, %x1")


def _rsqrt(b: Body) -> str:
    return b.div(1.0, b.op("math.sqrt", "%x0"))


def _sigmoid_f64(b: Body) -> str:
    return b.div(1.0, b.add(b.call("exp", b.op("arith.negf", "%x0")), 1.0))


def _signed(write: _Writer) -> _Writer:
    """A function that has the sign of its operand, that of a zero too."""
    return lambda b: b.op("math.copysign", write(b), "%x0")


_F32: dict[str, _Writer] = {
    "exp": lambda b: _exp_of(b, "%x0"),
    "exp2": _exp2,
    "expm1": _signed(lambda b: _expm1_of(b, "%x0")),
    "tanh": _signed(_tanh),
    "sigmoid": _sigmoid,
    "log": lambda b: _log_of(b, "%x0"),
    "log2": _log_base(LOG2E, 1.0),
    "log10": _log_base(0.4342944819032518, 0.30102999566398120),
    "log1p": _signed(_log1p),
    "erf": _erf,
    "sin": _circular("sin", 0),
    "cos": _circular("cos", 1),
    "pow": _pow,
    "fmod": _fmod,
    "rsqrt": _rsqrt,
}
_F64: dict[str, _Writer] = {"rsqrt": _rsqrt, "sigmoid": _sigmoid_f64, "fmod": _fmod}
