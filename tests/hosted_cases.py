"""Arguments for every hosted operator that the project declares, as NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from quantized_cases import QUANTIZED

from stack.hosted import Op, declared, find

RANGES = {"b": (-128, 128), "B": (0, 256)}


@dataclass(frozen=True)
class Case:
    """An operator, what draws its arguments, and attributes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    below: int = 0  # integers of the last operand lie below it, where it has integers
    attributes: dict[str, Any] = field(default_factory=dict)
    kinds: str = ""  # of operands that are bytes: b with a sign, B without
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None
    order: int = 2  # how often JAX differentiates what it is made of
    given: Callable[[np.random.Generator], list[np.ndarray]] | None = None  # arguments, floats f64

    def __str__(self) -> str:
        return f"{self.name}-{'x'.join(map(str, self.shapes[0]))}"

    @property
    def elements(self) -> int:
        """Of the largest operand."""
        return max(map(math.prod, self.shapes))

    @property
    def has_derivative(self) -> bool:
        """Whether a result is a float."""
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
        shapes = self.shapes[:-1] if self.below else self.shapes
        draw = self.draw or (lambda rng, shape: rng.standard_normal(shape))
        kinds = self.kinds.ljust(len(shapes))
        made = [
            np.asarray(draw(rng, s)).astype(dtype)
            if kind == " "
            else rng.integers(*RANGES[kind], s, np.dtype(kind))
            for s, kind in zip(shapes, kinds, strict=True)
        ]
        if self.below:
            made.append(np.asarray(rng.integers(0, self.below, self.shapes[-1]), np.int32))
        return made


CAUSAL = {"causal": True, "softcap": 2.0}
DECODE = {"causal": True, "window": 4, "scale": 0.7}
FLASH = ((1, 2, 100, 64), (1, 1, 100, 64), (1, 1, 100, 64))
CASES = (
    Case("norm.rms_norm", ((2, 3, 8), (8,)), attributes={"eps": 1e-3}),
    Case("norm.rms_norm", ((300,), (300,))),
    Case("norm.layer_norm", ((4, 300), (300,), (300,))),
    Case("norm.softmax", ((3, 2, 5),)),
    Case("norm.softmax", ((2, 600),)),
    Case("activation.swiglu", ((3, 4), (3, 4))),
    Case("loss.cross_entropy", ((6, 7), (6,)), 7, {"ignore_index": 3}),
    Case("loss.cross_entropy", ((2, 3, 300), (2, 3)), 300),
    Case("loss.linear_cross_entropy", ((5, 4), (300, 4), (5,)), 300, {"ignore_index": 7}),
    Case("loss.linear_cross_entropy", ((2, 3, 4), (6, 4), (2, 3)), 6, {"ignore_index": 1}),
    Case("attention.attention", ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 4)), attributes=CAUSAL),
    Case("attention.attention", ((2, 1, 3), (1, 7, 3), (1, 7, 3)), attributes=DECODE),
    Case("attention.attention", ((2, 9, 4), (2, 150, 4), (2, 150, 4))),
    Case("attention.attention", FLASH, attributes={"causal": True}),
    Case("attention.with_sinks", ((4, 5, 3), (2, 5, 3), (2, 5, 3), (4,)), attributes={"window": 2}),
    Case("attention.with_alibi", ((4, 2, 3), (4, 6, 3), (4, 6, 3), (4,))),
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
    Case("scan.gated_gradient", (*[(2, 5, 3)] * 2, (2, 3), *[(2, 5, 3)] * 2)),
)
SMALL = tuple(
    c for c in CASES if max(max(s, default=1) for s in c.shapes) < 100 and c.elements < 1000
)


def own() -> set[str]:
    """The operators of the project, without those that other tests declare."""
    return {n for n in declared() if find(n).decomposition.__module__.startswith("stack.ops.")}
