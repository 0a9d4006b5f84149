"""Arguments for every hosted operator that the project declares, as NumPy arrays."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from quantized_cases import QUANTIZED

import stack.ops
from stack.hosted import Op, declared, find

# of bytes: with a sign, without, and codes of E4M3 up to 8 that are positive
RANGES = {"b": (-128, 128, "b"), "B": (0, 256, "B"), "8": (0, 81, "B")}


@dataclass(frozen=True)
class Case:
    """An operator, what draws its arguments, and attributes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    below: int = 0  # integers of the last operand lie below it, where it has integers
    attributes: dict[str, Any] = field(default_factory=dict)
    kinds: str = ""  # of operands that are bytes: b with a sign, B without
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None
    integers: tuple[Any, ...] = ()  # the last operands, as they are
    order: int = 2  # how often JAX differentiates its decomposition
    given: Callable[[np.random.Generator], list[np.ndarray]] | None = None  # arguments, floats f64

    def __str__(self) -> str:
        return f"{self.name}-{'x'.join(map(str, self.shapes[0]))}"

    @property
    def elements(self) -> int:
        """The number of elements of the largest operand."""
        return max(map(math.prod, self.shapes))

    @property
    def has_derivative(self) -> bool:
        """True if a result is a float."""
        made = self.op(*self.arrays(), **self.attributes)
        results = made if isinstance(made, tuple) else (made,)
        return any(r.dtype.kind == "f" for r in results)

    @property
    def op(self) -> Op:
        return find(self.name)

    def arrays(self, dtype: str = "float64", seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.given is not None:
            return [a.astype(dtype) if a.dtype == float else a for a in self.given(rng)]
        count = len(self.shapes) - len(self.integers) - bool(self.below)
        shapes = self.shapes[:count]
        draw = self.draw or (lambda rng, shape: rng.standard_normal(shape))
        kinds = self.kinds.ljust(len(shapes))
        made = [
            np.asarray(draw(rng, s)).astype(dtype)
            if kind == " "
            else rng.integers(*RANGES[kind][:2], s, np.dtype(RANGES[kind][2]))
            for s, kind in zip(shapes, kinds, strict=True)
        ]
        if self.below:
            made.append(np.asarray(rng.integers(0, self.below, self.shapes[-1]), np.int32))
        return made + [np.asarray(x, np.int32) for x in self.integers]


CAUSAL = {"causal": True, "softcap": 2.0}
DECODE = {"causal": True, "window": 4, "scale": 0.7}


def often_hidden(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers; of what has the shape of scores the last rows are -inf, but for one key."""
    made = rng.standard_normal(shape)
    if shape == (4, 5, 6):
        made[:, 3:, 1:] = -np.inf
    return made


def decaying(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers below 0 of which a recurrence forgets: as decays, keys and what is added."""
    return -rng.uniform(0.1, 0.9, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Keys shorter than 1, and rates below it."""
    return rng.uniform(0.1, 0.45, shape)


LINEAR = ((4, 7, 4), (2, 7, 4), (2, 7, 3), (2, 7, 1), (2, 7), (2, 4, 3))
HEADS = ((2, 7, 4), (2, 7, 4), (2, 7, 3), (2, 7, 4), (2, 4, 3))
GRADIENT = (*HEADS, (2, 7, 3), (2, 4, 3), (2, 7, 3), (2, 4, 3))
RWKV = (*[(2, 7, 4)] * 3, (2, 7, 3), *[(2, 7, 4)] * 2, (2, 4, 3))
SSD = ((2, 7, 3), (2, 7), (2,), (7, 4), (7, 4), (2,), (2, 4, 3))
SELECTIVE = ((2, 7, 3), (2, 7, 3), (3, 4), (2, 7, 4), (2, 7, 4), (3,), (2, 3, 4))
FLASH = ((1, 2, 100, 64), (1, 1, 100, 64), (1, 1, 100, 64))
FLASH_GRADIENT = (*FLASH, (1, 2, 100, 64), (1, 2, 100), (1, 2, 100, 64), (1, 2, 100))
CASES = (
    Case("norm.rms_norm", ((2, 3, 8), (8,)), attributes={"eps": 1e-3}),
    Case("norm.rms_norm", ((300,), (300,))),
    Case("norm.add_rms_norm", ((2, 3, 8), (2, 3, 8), (8,)), attributes={"eps": 1e-3}),
    Case("norm.add_rms_norm", ((300,), (300,), (300,))),
    Case("norm.layer_norm", ((4, 300), (300,), (300,))),
    Case("norm.layer_norm", ((4, 6), (6,), (6,))),
    Case("norm.softmax", ((3, 2, 5),)),
    Case("norm.softmax", ((2, 600),)),
    Case("activation.swiglu", ((3, 4), (3, 4))),
    Case("loss.cross_entropy", ((6, 7), (6,)), 7, {"ignore_index": 3}),
    Case("loss.cross_entropy", ((2, 3, 300), (2, 3)), 300),
    Case("loss.linear_cross_entropy", ((300, 72), (300, 72), (300,)), 300),
    Case("loss.linear_cross_entropy", ((5, 4), (300, 4), (5,)), 300, {"ignore_index": 7}),
    Case("loss.linear_cross_entropy", ((2, 3, 4), (6, 4), (2, 3)), 6, {"ignore_index": 1}),
    Case("attention.attention", ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 4)), attributes=CAUSAL),
    Case("attention.attention", ((2, 1, 3), (1, 7, 3), (1, 7, 3)), attributes=DECODE),
    Case("attention.attention", ((2, 9, 4), (2, 150, 4), (2, 150, 4))),
    Case("attention.attention", FLASH, attributes={"causal": True}),
    Case("attention.with_sinks", ((4, 5, 3), (2, 5, 3), (2, 5, 3), (4,)), attributes={"window": 2}),
    Case("attention.with_alibi", ((4, 2, 3), (4, 6, 3), (4, 6, 3), (4,))),
    Case("attention.with_bias", ((4, 5, 3), (2, 6, 3), (2, 6, 3), (4, 5, 6)), draw=often_hidden),
    Case(
        "attention.with_documents",
        ((2, 2, 6, 3), (2, 1, 6, 3), (2, 1, 6, 3), (2, 6), (2, 6)),
        integers=([[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 2, 2]], [[0, 0, 1, 1, 1, 3], [0] * 6]),
    ),
    Case(
        "attention.with_prefix",
        ((2, 2, 5, 3), (2, 1, 6, 3), (2, 1, 6, 4), (2,)),
        integers=([3, 0],),
    ),
    Case(
        "attention.with_tree",
        ((2, 2, 4, 3), (2, 1, 7, 3), (2, 1, 7, 3), (2, 7)),
        integers=([[7, 7, 7, 7, 6, 6, 7], [7, 7, 7, 6, 5, 6, 7]],),
    ),
    Case(
        "attention.with_cache",
        ((2, 2, 3, 3), (2, 1, 9, 3), (2, 1, 9, 3), (2,)),
        attributes={"window": 4},
        integers=([4, 9],),
    ),
    Case(
        "attention.with_cache",
        ((2, 8, 1, 64), (2, 2, 700, 64), (2, 2, 700, 64), (2,)),
        integers=([1, 600],),
    ),
    Case("attention.with_lse", ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 4)), attributes=CAUSAL),
    Case("attention.with_lse", FLASH, attributes={"causal": True}),
    Case("attention.with_lse", ((2, 3, 4), (1, 70, 4), (1, 70, 4)), attributes={"scale": 0.3}),
    Case(
        "attention.with_lse_gradient",
        ((4, 5, 3), (2, 6, 3), (2, 6, 4), (4, 5, 4), (4, 5), (4, 5, 4), (4, 5)),
        draw=lambda rng, s: 0.3 * rng.standard_normal(s),  # weights of about 1
        attributes=CAUSAL,
    ),
    Case("attention.with_lse_gradient", FLASH_GRADIENT, attributes={"causal": True}),
    Case("attention.merge", ((2, 3, 4), (2, 3))),
    Case(
        "attention.paged",
        ((2, 4, 2, 3), (5, 4, 2, 3), (5, 4, 2, 4), (2, 3), (2,)),
        integers=([[4, 0, 3], [2, 1, 0]], [10, 5]),
    ),
    Case(
        "attention.paged",
        ((2, 4, 1, 64), (5, 16, 2, 64), (5, 16, 2, 64), (2, 3), (2,)),
        integers=([[4, 0, 3], [2, 1, 9]], [33, 17]),
    ),
    Case("attention.mla", ((2, 3, 4, 4), (2, 3, 4, 2), (2, 5, 3), (2, 5, 2), (3, 3, 4), (3, 3, 5))),
    Case(
        "attention.mla_absorbed",
        ((2, 3, 2, 6), (2, 3, 2, 2), (2, 5, 6), (2, 5, 2)),
        attributes={"scale": 0.4},
    ),
    Case(
        "attention.mla_absorbed",
        ((1, 20, 1, 64), (1, 20, 1, 16), (1, 300, 64), (1, 300, 16)),
        attributes={"scale": 0.1},
    ),
    Case("attention.rope", ((2, 3, 4, 6), (2, 4, 3), (2, 4, 3))),
    Case("attention.rope", ((3, 4, 8), (4, 2), (4, 2)), attributes={"interleaved": True}),
    Case(
        "attention.fp8",
        ((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), (2, 4), (2, 2), (2, 2)),
        kinds="888",
        attributes={"causal": True},
    ),
    Case("qgemm.w8a8", ((2, 3, 6), (5, 6), (2, 3), (5,)), kinds="bb"),
    Case("qgemm.w4a16", ((3, 8), (5, 4), (5, 2)), kinds=" B"),
    Case("qgemm.w4a16", ((20, 320), (70, 160), (70, 5)), kinds=" B"),
    *(Case(*made[:2], given=made[2], attributes=made[3], order=made[4]) for made in QUANTIZED),
    Case("scan.inclusive", ((2, 3, 5),)),
    Case("scan.inclusive", ((2, 150),)),
    Case("scan.exclusive", ((2, 3, 5),)),
    Case("scan.exclusive", ((3, 1),)),
    Case("scan.segmented", ((2, 9), (2, 9)), 2),
    Case("scan.segmented", ((150,), (150,)), 2),
    Case("scan.gated", ((2, 5, 3), (2, 5, 3), (2, 3))),
    Case("scan.gated", ((150, 3), (150, 3), (3,)), draw=lambda rng, s: rng.uniform(-1, 1, s)),
    Case("scan.linear_attention", LINEAR, draw=decaying, attributes={"scale": 0.5}),
    Case("scan.linear_attention", LINEAR, draw=decaying, attributes={"delta": False, "chunk": 2}),
    Case("scan.gla", HEADS, draw=decaying, attributes={"chunk": 4}),
    Case("scan.gla_gradient", GRADIENT, draw=decaying, attributes={"chunk": 4}),
    Case("scan.retention", ((2, 7, 4), (2, 7, 4), (2, 7, 3), (2,), (2, 4, 3)), draw=decaying),
    Case("scan.delta", ((2, 7, 4), (2, 7, 4), (2, 7, 3), (2, 7), (2, 4, 3)), draw=positive),
    Case(
        "scan.delta",
        ((1, 70, 4), (1, 70, 4), (1, 70, 3), (1, 70), (1, 4, 3)),
        draw=positive,
        attributes={"chunk": 64},
    ),
    Case("scan.rwkv7", RWKV, draw=decaying, attributes={"chunk": 4}),
    Case("scan.ssd", SSD, draw=decaying, attributes={"chunk": 4}),
    Case("scan.selective", SELECTIVE, draw=decaying),
    Case("scan.gated_gradient", (*[(2, 5, 3)] * 2, (2, 3), *[(2, 5, 3)] * 2)),
)
_SMALL = [c for c in CASES if max(max(s, default=1) for s in c.shapes) < 100 and c.elements < 1000]
_SMALL += [
    min((c for c in CASES if c.name == name), key=lambda c: c.elements)
    for name in sorted({c.name for c in CASES} - {c.name for c in _SMALL})
]
FAMILIES = sorted({c.name.partition(".")[0] for c in CASES})
QUICK_FAMILY = "norm"


def _swept() -> list[Any]:
    """Small cases for checks that take seconds: one of each family, the others are a sweep."""
    families: set[str] = set()
    made: list[Any] = []
    for case in _SMALL:
        family = case.name.partition(".")[0]
        marks = pytest.mark.slow if family in families else ()
        families.add(family)
        made.append(pytest.param(case, marks=marks, id=str(case)))
    return made


SMALL = _swept()


def of_family(family: str) -> list[Case]:
    """The first small case of each of its operators."""
    mine = [c for c in _SMALL if c.name.partition(".")[0] == family]
    return list({c.name: c for c in reversed(mine)}.values())[::-1]


def own() -> set[str]:
    """The operators of the project, without those that lessons and other tests declare."""
    rooms = {room.name for room in pkgutil.iter_modules(stack.ops.__path__)}
    return {name for name in declared() if name.split(".")[0] in rooms}
