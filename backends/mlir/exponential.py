"""Exponentials of f32: a power of two, which is a shift of bits, times a polynomial of the rest."""

from __future__ import annotations

from collections.abc import Callable

from .avx512 import above_floor, scaled
from .writer import MAGIC, Body

LOG2E = 1.4426950408889634

# Coefficients, lowest power first: Lawson-weighted fits, rounded to f32 one after the other.
EXP_Q = (0.5, 0.166665196, 0.0416664034, 0.00836883113, 0.00139405322)
EXPM1_Q = (0.5, 0.166666672, 0.0416664891, 0.00833320804, 0.00139326858, 0.000199442555)
EXP2_Q = (0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.00133909844, 0.000154628797)
EXP2_FLOOR_Q = (0.69314706, 0.24022909, 0.055486184, 0.009673775, 0.001248229, 0.00021565972)


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


def exp_of(b: Body, x: str) -> str:
    def near(x: str) -> tuple[str, str]:
        z, tail = _tail(b, b.at_most(x, 89.0))
        return z, b.add(tail, 1.0)

    return _powers(b, x, -105.0, near)


def half_sum(b: Body, x: str, sign: float) -> str:
    """(exp(x) + exp(-x)) / 2, or half the difference; x >= 0. Rounded as one exponential is."""

    def near(x: str) -> tuple[str, str]:
        z, tail = _tail(b, b.at_most(x, 90.0))
        least = b.at_most(z, MAGIC + 30)  # beyond, the other exponential does not show
        bits = b.iop("subi", b.to_bits(b.f(MAGIC)), b.to_bits(least))
        power = b.from_bits(b.iop("shli", b.iop("addi", bits, 127), 23))
        other = b.mul(b.div(power, b.add(tail, 1.0)), b.mul(power, sign))
        return z, b.mul(b.add(b.add(tail, other), 1.0), 0.5)

    return _powers(b, x, 0.0, near)


def _tail(b: Body, x: str) -> tuple[str, str]:
    """n + MAGIC and t with exp(x) = (1 + t) 2^n."""
    z, r = _reduce(b, x)
    return z, b.fma(b.mul(r, r), b.polynomial(r, EXP_Q), r)


def exp2(b: Body) -> str:
    if _has_scalef(b):  # which takes the floor itself
        r = above_floor(b, "%x0")
        return scaled(b, b.fma(r, b.polynomial(r, EXP2_FLOOR_Q), 1.0), "%x0", "%x0", -151.0)

    def near(x: str) -> tuple[str, str]:
        x = b.at_most(x, 129.0)
        z = b.add(x, MAGIC)
        r = b.sub(x, b.sub(z, MAGIC))
        return z, b.fma(r, b.polynomial(r, EXP2_Q), 1.0)

    return _powers(b, "%x0", -151.0, near)


def expm1_of(b: Body, x: str) -> str:
    # Below -18 the result is -1. Half of 2^n, so that n = 128 does not overflow too early.
    z, r = _reduce(b, b.at_most(b.at_least(x, -18.0), 89.0))
    p = b.fma(b.mul(r, r), b.polynomial(r, EXPM1_Q), r)
    half = b.from_bits(b.iop("shli", b.iop("addi", b.to_bits(z), 126), 23))
    return b.mul(b.fma(half, p, b.sub(half, 0.5)), 2.0)
