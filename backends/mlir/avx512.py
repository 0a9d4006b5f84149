"""Instructions of AVX-512 that elementary functions take: on registers of up to 16 lanes of f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .writer import Body, vector

LANES = 16


def scaled(b: Body, p: str, n: str) -> str:
    """p * 2^n, with gradual underflow and overflow."""
    width = min(b.lanes, LANES)
    t = vector(b.element, width)
    mask_type = f"i{max(width, 8)}"
    every = (1 << max(width, 8)) - 1
    mask = b.do(f"arith.constant {every - (1 << max(width, 8))} : {mask_type}")
    zero = b.do(f"arith.constant dense<0.0> : {t}")
    more, more_type = "", ""
    if width == LANES:
        more, more_type = ", " + b.do("arith.constant 4 : i32"), ", i32"

    def one(p: str, n: str) -> str:
        return b.do(
            f'llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.{32 * width}"'
            f"({p}, {n}, {zero}, {mask}{more}) : ({t}, {t}, {t}, {mask_type}{more_type}) -> {t}"
        )

    return _by_register(b, [(p, b.type), (n, b.type)], one)


def looked_up(b: Body, table: Sequence[float], index: str) -> str:
    """The entries of a table of 16 at the low 4 bits of an index, on a multiple of 16 lanes."""
    t = vector(b.element, LANES)
    entries = b.do(f"arith.constant dense<[{', '.join(map(repr, table))}]> : {t}")

    def one(index: str) -> str:
        return b.do(
            f'llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"({entries}, {index}) : '
            f"({t}, {vector('i32', LANES)}) -> {t}"
        )

    return _by_register(b, [(index, b.bits)], one)


def _by_register(b: Body, values: Sequence[tuple[str, str]], one: Callable[..., str]) -> str:
    """What an instruction makes of values with their types, whose lanes are a power of two."""
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
