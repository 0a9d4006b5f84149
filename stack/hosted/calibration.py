"""Calibration: what a product's weight is rounded to, chosen by a sample of what it is given.

    @calibrator("qgemm.gptq")
    def gptq(product):
        '''Columns are rounded one after the other, and those to come make up for the error.'''
        return replace(product, operands=...)

A calibrator takes a `Product` and gives one: it turns both sides, so that their product stays and
rounding does less harm, or it chooses the operands itself. Several go one after the other:
"hadamard+gptq".
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
    """`x @ weight.T` on its way to an operator that packs weights.

    Attributes:
        scheme: the operator.
        group: neighbours that share a scale, where the operator leaves that open.
        x: `[rows, k]`, a sample of what the product is given, after `turns`.
        weight: `[n, k]`, as it meets that.
        turns: what x goes through first.
        operands: what the operator takes after x, where a calibrator has chosen it.
    """

    scheme: Op
    group: int
    x: Array
    weight: Array
    turns: tuple[Turn, ...] = ()
    operands: tuple[Array, ...] | None = None

    def packed(self) -> tuple[Array, ...]:
        """What the operator takes after x. Raises ValueError where the weight does not fit."""
        return self._packed(self.weight) if self.operands is None else self.operands

    def _packed(self, weight: Array) -> tuple[Array, ...]:
        assert self.scheme.packs is not None
        return tuple(np.asarray(a) for a in self.scheme.packs(weight, self.group))

    def run(self, x: Array, weight: Array) -> Array:
        """What the operator gives for some rows and a weight, rounded to the nearest."""
        packed = self._packed(weight)
        return self.scheme.decomposition(np, x, *packed, **self.scheme.read({}))

    def turned(self, turn: Turn, weight: Array) -> Product:
        """Both sides turned: `turn` for x, and the weight that meets what it gives."""
        return replace(self, x=turn(np, self.x), weight=weight, turns=(*self.turns, turn))

    def scaled(self, scale: Array) -> Product:
        """x over a scale for each of k, and the weight times it."""

        def turn(np: Any, x: Any) -> Any:
            return x * np.asarray(1 / scale, x.dtype)

        return self.turned(turn, self.weight * scale.astype(self.weight.dtype))


def calibrator(name: str) -> Callable[[Calibrator], Calibrator]:
    """Declare one, as "family.name"; those of a family are declared with its operators."""

    def declare(run: Calibrator) -> Calibrator:
        _CALIBRATORS[name] = run
        return run

    return declare


def find_calibrator(name: str) -> Calibrator:
    """One of a family that is loaded. Raises UsageError with those that there are."""
    if name not in _CALIBRATORS:
        raise unknown_name("no calibrator", name, sorted(_CALIBRATORS))
    return _CALIBRATORS[name]
