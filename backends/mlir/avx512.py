"""AVX-512 instructions for elementary functions, on registers of up to 16 lanes of f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .writer import Body, constant, vector

LANES = 16


def scaled(b: Body, p: str, n: str, x: str, least: float) -> str:
    """Returns p * 2^n, with gradual underflow and overflow; 0 in lanes where x < `least`.

    These lanes are masked off, because an underflow costs the CPU some hundred cycles.
    """
    width = min(b.lanes, LANES)
    t, bits = vector(b.element, width), max(width, 8)
    zero = b.do(f"arith.constant dense<0.0> : {t}")
    low = b.do(constant(least, b.element, width))
    more, more_type = _rounding(b, width)

    def one(p: str, n: str, x: str) -> str:
        mask = b.do(f"arith.cmpf uge, {x}, {low} : {t}")
        mask = b.do(f"vector.bitcast {mask} : vector<{width}xi1> to vector<1xi{width}>")
        mask = b.do(f"vector.extract {mask}[0] : i{width} from vector<1xi{width}>")
        if width < bits:
            mask = b.do(f"arith.extui {mask} : i{width} to i{bits}")
        return b.do(
            f'llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.{32 * width}"'
            f"({p}, {n}, {zero}, {mask}{more}) : ({t}, {t}, {t}, i{bits}{more_type}) -> {t}"
        )

    return _by_register(b, [(p, b.type), (n, b.type), (x, b.type)], one)


def above_floor(b: Body, x: str) -> str:
    """x - floor(x); 0 for infinities."""
    width = min(b.lanes, LANES)
    t, bits = vector(b.element, width), max(width, 8)
    how, every = b.do("arith.constant 9 : i32"), b.do(f"arith.constant -1 : i{bits}")
    more, more_type = _rounding(b, width)

    def one(x: str) -> str:
        return b.do(
            f'llvm.call_intrinsic "llvm.x86.avx512.mask.reduce.ps.{32 * width}"'
            f"({x}, {how}, {x}, {every}{more}) : ({t}, i32, {t}, i{bits}{more_type}) -> {t}"
        )

    return _by_register(b, [(x, b.type)], one)


def _rounding(b: Body, width: int) -> tuple[str, str]:
    """Returns the texts of the rounding-mode operand and of its type.

    Only instructions on whole registers have this operand; for others both texts are empty.
    """
    return (", " + b.do("arith.constant 4 : i32"), ", i32") if width == LANES else ("", "")


def looked_up(b: Body, table: Sequence[float], index: str) -> str:
    """Looks up a table of 16 by the low 4 bits of an index, on a multiple of 16 lanes."""
    t = vector(b.element, LANES)
    entries = b.do(f"arith.constant dense<[{', '.join(map(repr, table))}]> : {t}")

    def one(index: str) -> str:
        return b.do(
            f'llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"({entries}, {index}) : '
            f"({t}, {vector('i32', LANES)}) -> {t}"
        )

    return _by_register(b, [(index, b.bits)], one)


def _by_register(b: Body, values: Sequence[tuple[str, str]], one: Callable[..., str]) -> str:
    """Splits vectors into registers, applies an instruction to each, and joins the results.

    `values`: pairs of a vector and its type. The number of lanes is a power of two.
    """
    width = min(b.lanes, LANES)
    made: list[str] = []
    for start in range(0, b.lanes, width):
        parts = [value for value, _ in values]
        if b.lanes > width:
            picks = list(range(start, start + width))
            parts = [b.do(f"vector.shuffle {x}, {x} {picks} : {t}, {t}") for x, t in values]
        made.append(one(*parts))
    while len(made) > 1:
        t, picks = vector(b.element, width), list(range(2 * width))
        pairs = zip(made[::2], made[1::2], strict=True)
        made = [b.do(f"vector.shuffle {x}, {y} {picks} : {t}, {t}") for x, y in pairs]
        width *= 2
    return made[0]
