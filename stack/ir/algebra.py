"""Algebraic facts of ops that hold for all operands. Passes use them to justify rewrites.

Facts are about real numbers. Rounding, overflow or nan may contradict a fact, so a pass that
promises exact bits must check the element type too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

INF = math.inf
RISING, FALLING = 1, -1
Values = Mapping[int, float]  # by operand; "all bits set" of integers and conditions is -1


@dataclass(frozen=True)
class Algebra:
    """Facts of one op.

    Attributes:
        linear: groups of operands in which the op is jointly linear, the others fixed: addition is
            linear in (0, 1), multiplication in (0,) and in (1,).
        monotone: for each operand 1 if the result increases with it, -1 if it decreases.
        neutral: maps an operand to the value for which the result is the other operand.
        absorbing: maps an operand to the value that the result then has for every finite other
            operand.
        commutative: f(x, y) = f(y, x).
        associative: f(f(x, y), z) = f(x, f(y, z)).
        idempotent: f(x, x) = x; for one operand, f(f(x)) = f(x).
        reflexive: the value of a comparison of x with x.
        negated: the comparison that is true exactly where this one is false.
        inverse: the op that inverts it.
        maps: pairs (g, h) of binary ops with f(g(x, y)) = h(f(x), f(y)).
        range: the minimum and maximum result.
        pole: True if the result may be infinite for finite operands.
        exact: True if nothing is rounded: the result is an operand, or has no more digits.
        chooses: True if operand 0 selects which of the others is the result.
        converts: True if the result is the operand's number, rounded to another element type.
        reinterprets: True if the result has the operand's bits with another element type.
    """

    linear: tuple[tuple[int, ...], ...] = ()
    monotone: tuple[int, ...] = ()
    neutral: Values = field(default_factory=dict[int, float])
    absorbing: Values = field(default_factory=dict[int, float])
    commutative: bool = False
    associative: bool = False
    idempotent: bool = False
    reflexive: bool | None = None
    negated: str = ""
    inverse: str = ""
    maps: tuple[tuple[str, str], ...] = ()
    range: tuple[float, float] = (-INF, INF)
    pole: bool = False
    exact: bool = False
    chooses: bool = False
    converts: bool = False
    reinterprets: bool = False

    @property
    def is_order(self) -> bool:
        """True for <, <=, > and >=. It is increasing in the operand that must be greater."""
        return bool(self.negated and self.monotone)


NOTHING = Algebra()  # no known facts
_RISING = Algebra(monotone=(RISING,))
_WHOLE = replace(_RISING, idempotent=True, exact=True)
_SUMS_TO_PRODUCTS, _PRODUCTS_TO_SUMS = (("add", "mul"),), (("mul", "add"),)
_PRODUCTS = (("mul", "mul"),)
_BOTH = (RISING, RISING)

ELEMENTWISE: dict[str, Algebra] = {
    "neg": Algebra(
        ((0,),), (FALLING,), inverse="neg", exact=True,
        maps=(("add", "add"), ("sub", "sub"), ("max", "min"), ("min", "max")),
    ),
    "abs": Algebra(idempotent=True, range=(0, INF), exact=True, maps=_PRODUCTS),
    "sign": replace(_WHOLE, range=(-1, 1), maps=_PRODUCTS),
    "not": Algebra(monotone=(FALLING,), inverse="not", maps=(("and", "or"), ("or", "and"))),
    "floor": _WHOLE,
    "ceil": _WHOLE,
    "round": _WHOLE,
    "trunc": _WHOLE,
    "sqrt": replace(_RISING, range=(0, INF), maps=_PRODUCTS),
    "rsqrt": Algebra(monotone=(FALLING,), range=(0, INF), maps=_PRODUCTS, pole=True),
    "exp": replace(_RISING, inverse="log", range=(0, INF), maps=_SUMS_TO_PRODUCTS),
    "exp2": replace(_RISING, inverse="log2", range=(0, INF), maps=_SUMS_TO_PRODUCTS),
    "expm1": replace(_RISING, inverse="log1p", range=(-1, INF)),
    "log": replace(_RISING, inverse="exp", maps=_PRODUCTS_TO_SUMS, pole=True),
    "log2": replace(_RISING, inverse="exp2", maps=_PRODUCTS_TO_SUMS, pole=True),
    "log1p": replace(_RISING, inverse="expm1", pole=True),
    "sin": Algebra(range=(-1, 1)),
    "cos": Algebra(range=(-1, 1)),
    "tan": Algebra(),
    "asin": replace(_RISING, inverse="sin", range=(-math.pi / 2, math.pi / 2)),
    "acos": Algebra(monotone=(FALLING,), inverse="cos", range=(0, math.pi)),
    "atan": replace(_RISING, inverse="tan", range=(-math.pi / 2, math.pi / 2)),
    "sinh": replace(_RISING, inverse="asinh"),
    "cosh": Algebra(range=(1, INF)),
    "tanh": replace(_RISING, inverse="atanh", range=(-1, 1)),
    "asinh": replace(_RISING, inverse="sinh"),
    "acosh": replace(_RISING, inverse="cosh", range=(0, INF)),
    "atanh": replace(_RISING, inverse="tanh", pole=True),
    "sigmoid": replace(_RISING, range=(0, 1)),
    "erf": replace(_RISING, inverse="erfinv", range=(-1, 1)),
    "erfinv": replace(_RISING, inverse="erf", pole=True),
    "lgamma": Algebra(pole=True),
    "digamma": Algebra(pole=True),
    "add": Algebra(
        ((0, 1),), _BOTH, {0: 0, 1: 0}, {0: -INF, 1: -INF}, commutative=True, associative=True
    ),
    "sub": Algebra(((0, 1),), (RISING, FALLING), {1: 0}, {0: -INF}),
    "mul": Algebra(
        ((0,), (1,)), (), {0: 1, 1: 1}, {0: 0, 1: 0}, commutative=True, associative=True
    ),
    "div": Algebra(((0,),), (), {1: 1}, {0: 0}, pole=True),
    "pow": Algebra(neutral={1: 1}, pole=True),
    "max": Algebra(
        (), _BOTH, {0: -INF, 1: -INF}, {0: INF, 1: INF},
        commutative=True, associative=True, idempotent=True, exact=True,
    ),
    "min": Algebra(
        (), _BOTH, {0: INF, 1: INF}, {0: -INF, 1: -INF},
        commutative=True, associative=True, idempotent=True, exact=True,
    ),
    "and": Algebra(
        (), _BOTH, {0: -1, 1: -1}, {0: 0, 1: 0}, commutative=True, associative=True, idempotent=True
    ),
    "or": Algebra(
        (), _BOTH, {0: 0, 1: 0}, {0: -1, 1: -1}, commutative=True, associative=True, idempotent=True
    ),
    "xor": Algebra(neutral={0: 0, 1: 0}, commutative=True, associative=True),
    "shl": Algebra(neutral={1: 0}, absorbing={0: 0}),
    "shr": Algebra(neutral={1: 0}, absorbing={0: 0}),
    "eq": Algebra(commutative=True, reflexive=True, negated="ne"),
    "ne": Algebra(commutative=True, reflexive=False, negated="eq"),
    "lt": Algebra(monotone=(FALLING, RISING), reflexive=False, negated="ge"),
    "le": Algebra(monotone=(FALLING, RISING), reflexive=True, negated="gt"),
    "gt": Algebra(monotone=(RISING, FALLING), reflexive=False, negated="le"),
    "ge": Algebra(monotone=(RISING, FALLING), reflexive=True, negated="lt"),
    "select": Algebra(((1, 2),), (0, RISING, RISING), exact=True, chooses=True),
    "cast": Algebra(((0,),), exact=True, converts=True),
    "bitcast": Algebra(exact=True, reinterprets=True),
}  # fmt: skip

# the op that combines the elements of a reduction of a kind
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
KIND_OF = {op: kind for kind, op in COMBINE.items()}  # the kind of reduction of an op


def reduction(kind: str) -> Algebra:
    """Returns the algebraic facts of a reduction or scan of kind "sum", "max" and so on. They
    follow from the op that combines two elements, such as addition.
    """
    pair = ELEMENTWISE[COMBINE[kind]]
    is_linear = pair.linear == ((0, 1),)
    return Algebra(
        ((0,),) if is_linear else (), pair.monotone[:1], exact=pair.exact, range=pair.range
    )
