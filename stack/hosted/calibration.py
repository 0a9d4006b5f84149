"""Calibration: choose the rounding of a matmul's weight from a sample of its inputs.

    @calibrator("qgemm.gptq")
    def gptq(product):
        '''Columns are rounded one after the other, and those to come make up for the error.'''
        return replace(product, operands=...)

A calibrator maps a `Product` to another. It either transforms both sides so that their matmul is
unchanged and rounding does less harm, or it computes the packed operands itself. Several run one
after the other: "hadamard+gptq".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stack.errors import unknown_name
from stack.hosted.declaration import Op

Array = np.ndarray[Any, Any]
Turn = Callable[[Any, Any], Any]  # (numpy, x) -> x, written as decompositions are
Calibrator = Callable[["Product"], "Product"]

_CALIBRATORS: dict[str, Calibrator] = {}


@dataclass(frozen=True)
class Product:
    """A matmul `x @ weight.T` that is about to be replaced by an operator with packed weights.

    Attributes:
        scheme: the operator.
        group: number of consecutive elements that share a scale, if the operator leaves it open.
        x: `[rows, k]`, a sample of the matmul's input, after `turns`.
        weight: `[n, k]`, transformed to match x.
        turns: transformations applied to x first.
        operands: the operator's operands after x, if a calibrator computed them.
    """

    scheme: Op
    group: int
    x: Array
    weight: Array
    turns: tuple[Turn, ...] = ()
    operands: tuple[Array, ...] | None = None

    def packed(self) -> tuple[Array, ...]:
        """Returns the operator's operands after x. Raises ValueError if the weight does not fit."""
        return self._packed(self.weight) if self.operands is None else self.operands

    def _packed(self, weight: Array) -> tuple[Array, ...]:
        assert self.scheme.packs is not None
        return tuple(np.asarray(a) for a in self.scheme.packs(weight, self.group))

    def run(self, x: Array, weight: Array) -> Array:
        """Returns the operator's result for rows x, with the weight rounded to nearest and packed.

        AWQ compares it with the exact matmul, to choose scales. Raises ValueError if the weight
        does not fit the operator.
        """
        packed = self._packed(weight)
        return self.scheme.decomposition(np, x, *packed, **self.scheme.read({}))

    def turned(self, turn: Turn, weight: Array) -> Product:
        """Returns the product with transformation `turn` applied to x and with `weight` as its new
        weight, which compensates the transformation: the matmul computes the same result.
        """
        return replace(self, x=turn(np, self.x), weight=weight, turns=(*self.turns, turn))

    def scaled(self, scale: Array) -> Product:
        """Divides x by a scale per element of k, and multiplies the weight by it."""

        def turn(np: Any, x: Any) -> Any:
            return x * np.asarray(1 / scale, x.dtype)

        return self.turned(turn, self.weight * scale.astype(self.weight.dtype))


def calibrator(name: str) -> Callable[[Calibrator], Calibrator]:
    """Declares a calibrator as "family.name"; a family declares its own with its operators."""

    def declare(run: Calibrator) -> Calibrator:
        _CALIBRATORS[name] = run
        return run

    return declare


def find_calibrator(name: str) -> Calibrator:
    """Returns a calibrator of a loaded family. Raises UsageError with the known names."""
    if name not in _CALIBRATORS:
        raise unknown_name("no calibrator", name, sorted(_CALIBRATORS))
    return _CALIBRATORS[name]
