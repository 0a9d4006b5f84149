"""The numerical check: compares a function with what it was, by interpreting both.

All commands that check passes, stages, steps and native code use it: `Pipeline.run(check=True)`,
`stack.testing.check_pass`, `stackc opt --check`, `dump --check` and `bisect`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.streaming import TiledSpace
from stack.rewrite.check import (
    EXACT,
    OWN,
    TOLERANCE,
    Inexact,
    difference,
    errors,
    is_ill_conditioned,
    relative_error,
)
from stack.rewrite.inputs import GIVEN, inputs_of, kinds_for, sample_sizes
from stack.rewrite.wide import widen, widen_dtype

Arrays = Sequence[np.ndarray]
ROUNDINGS = 3  # random signs of rounding errors that are tried
REJECTED = (StackError, TypeError, ValueError, IndexError)  # the interpreter's errors


@dataclass(frozen=True)
class Verdict:
    """The result of comparing a stage of the compilation with the reference results, on one kind of
    inputs. `problem` describes the difference; it is "" if they agree.
    """

    stage: str
    kind: str
    error: float = 0.0
    problem: str = ""


class Truth:
    """The reference results of a function on every kind of inputs, see `inputs.KINDS`.

    Inputs that the function rejects, such as indices out of bounds, are left out; `kinds` lists the
    rest. Symbolic sizes are bound to small numbers.

    Args:
        given: the program's own arguments, which are checked first; () if there are none. They are
            not used if the function has symbolic sizes.
        kinds: other kinds of inputs; None for all.
    """

    def __init__(
        self,
        func: Func,
        seed: int = 0,
        given: Arrays = (),
        kinds: Sequence[str] | None = None,
    ) -> None:
        self.sizes = sample_sizes(func, np.random.default_rng(seed)) if func.symbols else {}
        self.func = func.bind(self.sizes) if self.sizes else func
        self.allowed = EXACT
        self.inputs: dict[str, list[np.ndarray]] = {}
        self.results: dict[str, list[Any]] = {}
        self.rejected = ""  # the first error of the interpreter
        if given and not self.sizes:
            self._add(GIVEN, list(given))
        for kind in kinds_for(self.func) if kinds is None else kinds:
            self._add(kind, inputs_of(self.func, kind, seed))

    def _add(self, kind: str, inputs: list[np.ndarray]) -> None:
        try:
            self.results[kind] = interpreted(self.func, inputs)
            self.inputs[kind] = inputs
        except REJECTED as error:
            self.rejected = self.rejected or str(error)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of inputs that the function accepts."""
        return tuple(self.inputs)

    def allow(self, inexact: Inexact) -> None:
        """Accepts from now on results that differ by up to `inexact`, which a rule changes by
        design.
        """
        self.allowed |= inexact

    def error(self, kind: str, found: Sequence[Any]) -> tuple[float, str]:
        """Returns the largest relative error of results, and a description if it is too large."""
        worst = 0.0
        if self.allowed.finite and not self._is_finite(kind):
            return worst, ""
        for i, (want, have) in enumerate(zip(self.results[kind], found, strict=True)):
            dtype = self.func.results[i].dtype
            error = difference(want, have, dtype)
            if error > self.allowed.limit(dtype) and self.allowed.wider:
                error = difference(want, self._judged(kind, i, have), dtype)
            is_wrong = error > self.allowed.limit(dtype)
            if is_wrong and (error == np.inf or error > self.limit(kind, i)):
                return error, f"result {i} differs by {error:.3g} of its largest value"
            worst = max(worst, error)
        return worst, ""

    def limit(self, kind: str, number: int) -> float:
        """Returns the largest error that is accepted of result `number` on inputs of kind `kind`.

        It is larger than the rules allow if the program itself differs more from its results in
        double precision.
        """
        exact, dtype = self._exact(kind), self.func.results[number].dtype
        usual = self.allowed.limit(dtype)
        if not exact or dtype.kind not in "fc":
            return usual
        own = relative_error(np.asarray(self.results[kind][number]), exact[number], dtype)
        return max(usual, OWN * own) if own < np.inf else usual

    def _judged(self, kind: str, number: int, found: Any) -> Any:
        """Replaces the elements of a result that are not judged after a rule with `Inexact.wider`
        by the expected values, so that they count as equal.
        """
        want, have = np.asarray(self.results[kind][number]), np.asarray(found)
        dtype, exact = self.func.results[number].dtype, self._exact(kind)
        if want.shape != have.shape or want.dtype != have.dtype or dtype.kind not in "fc":
            return found
        unsure = np.zeros(want.shape, np.bool_)
        if self._is_finite(kind):
            unsure |= ~np.isfinite(want)
        if exact:
            unsure |= is_ill_conditioned(want, _narrowed(exact[number], want), dtype)
        return np.where(unsure, want, have)

    def wrong_elements(self, kind: str, number: int, found: Any) -> np.ndarray:
        """Returns a mask of the elements of a result that are wrong, if the function computes each
        element from the input elements at its index alone, all of one shape.

        Each element is judged alone: its error is relative to its own value, and may be larger
        where rounding moves the program's own result more.
        """
        want, have = np.asarray(self.results[kind][number]), np.asarray(found)
        dtype, allowed = self.func.results[number].dtype, self.allowed
        off = errors(want, have, dtype)
        wrong = off > allowed.limit(dtype)
        if wrong.any() and dtype.kind in "fc":
            own = self.own_errors(kind, number)
            wrong &= np.isinf(off) | np.isinf(own) | (off > OWN * own)
            if allowed.wider:
                wrong &= own <= TOLERANCE.get(dtype.name, 0.0)
                wrong &= np.isfinite(want) | ~self._finite_elements(kind)
        return wrong & self._finite_elements(kind) if allowed.finite else wrong

    def own_errors(self, kind: str, number: int) -> np.ndarray:
        """Returns how far each element of a result is from its value in double precision, with and
        without rounding errors of the program's own types, relative to the element.
        """
        want, dtype = np.asarray(self.results[kind][number]), self.func.results[number].dtype
        own = np.zeros(want.shape)
        for seed in (None, *range(ROUNDINGS)):
            exact = self._exact(kind, None if seed is None else random.Random(seed))
            if exact:
                own = np.maximum(own, errors(want, _narrowed(exact[number], want), dtype))
        return own

    def _finite_elements(self, kind: str) -> np.ndarray:
        """Returns a mask of the indices at which all inputs are finite; all have one shape."""
        found = [np.isfinite(a) for a in self.inputs[kind] if a.dtype.kind in "fc"]
        return np.logical_and.reduce(found) if found else np.asarray(True)

    def _is_finite(self, kind: str) -> bool:
        return all(np.isfinite(a).all() for a in self.inputs[kind] if a.dtype.kind in "fc")

    def _exact(self, kind: str, roundings: random.Random | None = None) -> list[Any]:
        """The results in double precision, with `roundings` of the program's own types if given; an
        empty list if an op has no meaning there or rejects the inputs.
        """
        try:
            wide = widen(self.func, roundings)
            types = [widen_dtype(p.dtype).numpy for p in wide.params]
            return interpreted(
                wide, [a.astype(t) for a, t in zip(self.inputs[kind], types, strict=True)]
            )
        except REJECTED:
            return []

    def problem(self, func: Func, kinds: Sequence[str] = ()) -> str:
        """Returns the first difference between the results of another function and the reference;
        "" if there is none. See `compare`.
        """
        return self.compare(func, kinds)[1]

    def compare(self, func: Func, kinds: Sequence[str] = ()) -> tuple[float, str]:
        """Compares the results of another function with the reference results. Returns the largest
        relative error, and a description of the first problem.

        The description names the kind of inputs, and is "" if there is no problem. `kinds`: kinds
        of inputs to compare; all if empty.
        """
        worst = 0.0
        bound = func.bind(self.sizes) if func.symbols else func
        for kind in self.kinds:
            if not kinds or kind in kinds:
                found = self.verdict("", kind, bound)
                if found.problem:
                    return found.error, f"{found.problem} ({kind})"
                worst = max(worst, found.error)
        return worst, ""

    def verdict(self, stage: str, kind: str, func: Func) -> Verdict:
        """Compares a stage with the reference results on one kind of inputs."""
        try:
            found = interpreted(func, self.inputs[kind])
        except REJECTED as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            return Verdict(stage, kind, np.inf, f"it cannot be interpreted: {said}")
        return Verdict(stage, kind, *self.error(kind, found))


def _narrowed(exact: Any, want: np.ndarray) -> np.ndarray:
    """Rounds a result in double precision to the type of the program's result; an overflow of that
    type is judged.
    """
    with np.errstate(over="ignore"):
        return np.asarray(exact).astype(want.dtype)


def interpreted(func: Func, inputs: Arrays) -> list[Any]:
    """Runs the reference interpreter, without floating-point warnings.

    Streams run tile by tile, which reveals an incorrect block `correct`. Raises errors of
    `REJECTED`.
    """
    return list(evaluate(func.body, inputs, TiledSpace()))
