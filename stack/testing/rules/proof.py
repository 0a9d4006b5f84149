"""Checks a rewrite rule: a counterexample, or how many inputs agreed and the largest error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from stack.ir.func import Func
from stack.ir.types import DType
from stack.rewrite.check import EXACT, TOLERANCE, Inexact
from stack.rewrite.engine import Rule, Simple
from stack.rewrite.inputs import GIVEN
from stack.rewrite.truth import REJECTED, Truth, interpreted
from stack.testing.rules.ordinals import ulps
from stack.testing.rules.pointwise import (
    Arrays,
    box_search,
    domain,
    random_points,
    simpler,
    simplest,
    stretched,
)
from stack.testing.rules.search import Match, Search, applied

TRIES = 3000  # programs on which a rule is called
PROGRAMS = 24  # programs that are judged
SEEDS = 3  # of the inputs of a program that is not elementwise
RANDOM = 256  # points of each kind of random inputs
CELLS = 10  # bits of all inputs of a program that is not elementwise, of which all are tried
SHRINKS = 400  # inputs that are tried to make a counterexample smaller


@dataclass(frozen=True)
class Counterexample:
    """A program and inputs on which a rule changes the result, or on which it raises `error`."""

    before: Func
    after: Func | None = None
    inputs: Sequence[np.ndarray] = ()
    problem: str = ""

    def __str__(self) -> str:
        if self.after is None:
            return "\n".join([*_indented(self.before), f"  {self.problem}"])
        lines = [*_indented(self.before), "becomes", *_indented(self.after), ""]
        for p, value in zip(self.before.params, self.inputs, strict=True):
            lines.append(f"  %{p.attrs['name']} = {_shown(value)}")
        try:
            after = interpreted(self.after, self.inputs)
        except REJECTED:
            return "\n".join([*lines, f"  {self.problem}"])
        for want, have in zip(interpreted(self.before, self.inputs), after, strict=True):
            where = _first_difference(np.asarray(want), np.asarray(have))
            lines += [f"  before: {_shown(want)}", f"  after:  {_shown(have)}"]
            lines += [f"  first difference at {where}"] if where and np.size(want) > 1 else []
        return "\n".join(lines)


@dataclass
class Proof:
    """The outcome of a check of a rule.

    Attributes:
        programs: number of programs on which the rule applied and was judged.
        complete: number of those of which all inputs were tried.
        inputs: number of inputs that agreed; an input has a value for each parameter.
        types: element types of their parameters.
        error: largest error in units in the last place, among results that the program itself
            computes well; `worst`: where.
    """

    rule: Rule
    programs: int = 0
    complete: int = 0
    inputs: int = 0
    types: list[str] = field(default_factory=list[str])
    error: float = 0.0
    worst: Counterexample | None = None
    wrong: Counterexample | None = None

    @property
    def stated(self) -> Inexact:
        """The difference of results that the rule states."""
        return self.rule.inexact if isinstance(self.rule, Simple) else EXACT

    @property
    def verdict(self) -> str:
        """Returns "wrong", "agrees", or "not reached" if no program was found for the rule."""
        if self.wrong is not None:
            return "wrong"
        return "agrees" if self.programs else "not reached"


def check_rule(
    rule: Rule,
    given: Sequence[Func] = (),
    *,
    tries: int = TRIES,
    programs: int = PROGRAMS,
    exact: bool = False,
    seed: int = 0,
) -> Proof:
    """Looks for a program and inputs on which a rule changes a result by more than it states.

    Args:
        given: programs on which it is checked first.
        tries: small programs on which the rule is called, to find those that it changes.
        programs: number of changed programs that are judged.
        exact: accept no other bit, and no other sign of a zero.
    """
    proof = Proof(rule)
    raised: Counterexample | None = None
    for match in _matches(rule, given, tries, programs):
        if match.after is None:
            raised = raised or Counterexample(match.before, problem=match.error)
            continue
        judge = _Judge(proof, match.before, match.after, exact, seed)
        proof.wrong = judge.counterexample()
        if proof.wrong is not None:
            return proof
    proof.wrong = raised
    return proof


def _matches(rule: Rule, given: Sequence[Func], tries: int, most: int) -> Iterator[Match]:
    for func in given:
        match = applied(rule, func, fuel=None)
        if match is not None:
            yield match
    yield from islice(Search(rule, tries), most)


class _Judge:
    """Compares one program before and after a rule."""

    def __init__(self, proof: Proof, before: Func, after: Func, exact: bool, seed: int) -> None:
        self.proof, self.before, self.after = proof, before, after
        self.exact, self.seed = exact, seed
        self.dtypes = [p.dtype for p in before.params]
        self.found: tuple[Arrays, np.ndarray] | None = None  # wrong points

    def counterexample(self) -> Counterexample | None:
        """Returns the smallest inputs found at which the results differ; None if all agree."""
        if self.dtypes and stretched(self.before, 1) and stretched(self.after, 1):
            wrong = self._by_point()
        else:
            wrong = self._by_array()
        self.proof.programs += 1
        names = (d.name for d in self.dtypes)
        self.proof.types = list(dict.fromkeys((*self.proof.types, *names)))
        return wrong

    # ---- programs that compute each element alone

    def _by_point(self) -> Counterexample | None:
        points, is_all = domain(self.dtypes)
        self._scores(points)
        if not is_all and self.found is None:
            random = stretched(self.before, RANDOM)
            assert random is not None, "tested before"
            self._scores(random_points(random, self.seed))
            if any(d.kind == "f" for d in self.dtypes):
                box_search(self.dtypes, self._scores, np.random.default_rng(self.seed))
        self.proof.complete += is_all
        if self.found is None:
            return None
        points, mask = self.found
        wrong = [a[mask] for a in points]
        place = simplest(wrong)
        return self._at_point([a[place : place + 1] for a in wrong])

    def _scores(self, points: Arrays) -> np.ndarray:
        """Judges points. Returns their errors in units in the last place, 0 where these are not
        reliable.
        """
        before, after = (stretched(f, len(points[0])) for f in (self.before, self.after))
        assert before is not None and after is not None, "tested before"
        mask, away = self._judged(before, after, points)
        if mask.any() and self.found is None:
            self.found = points, mask
        agreed = np.where(mask, 0, away)
        place = int(np.argmax(agreed))
        self.proof.inputs += int((~mask).sum())
        if agreed[place] > self.proof.error:
            self.proof.error = float(agreed[place])
            self.proof.worst = self._shown_at([a[place : place + 1] for a in points])
        return agreed

    def _judged(self, before: Func, after: Func, points: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Returns which points are wrong, and the errors of all."""
        wrong, away = np.zeros(len(points[0]), np.bool_), np.zeros(len(points[0]))
        truth = self._truth(before, points)
        found = interpreted(after, points)
        for i, have in enumerate(found if truth.kinds else ()):
            want = np.asarray(truth.results[GIVEN][i])
            off = ulps(want, np.asarray(have), before.results[i].dtype)
            wrong |= truth.wrong_elements(GIVEN, i, have)
            if self.exact:
                wrong |= (off > 0) | _other_zero(want, np.asarray(have))
            dtype = before.results[i].dtype
            off[~np.isfinite(off) | (off > 0) & ~_is_accurate(truth, i, dtype)] = 0
            away = np.maximum(away, off)
        return wrong, away

    def _at_point(self, point: Arrays) -> Counterexample:
        """Makes the values of a counterexample simpler, one parameter after the other."""
        for number, dtype in enumerate(self.dtypes):
            tried = simpler(point[number][0], dtype)
            points = [np.repeat(a, len(tried)) for a in point]
            points[number] = tried
            before, after = (stretched(f, len(tried)) for f in (self.before, self.after))
            assert before is not None and after is not None, "tested before"
            mask = self._judged(before, after, points)[0]
            mask &= ~np.isnan(tried) if dtype.kind == "f" else True
            if mask.any():
                kept = [a[mask] for a in points]
                place = simplest(kept)
                point = [a[place : place + 1] for a in kept]
        return self._shown_at(point)

    def _shown_at(self, point: Arrays) -> Counterexample:
        before, after = stretched(self.before, 1), stretched(self.after, 1)
        assert before is not None and after is not None, "tested before"
        return Counterexample(before, after, point, self._problem(before, after, point))

    # ---- other programs

    def _by_array(self) -> Counterexample | None:
        inputs = self._every_array()
        self.proof.complete += inputs is not None
        for arrays in inputs if inputs is not None else self._drawn():
            problem = self._problem(self.before, self.after, arrays)
            if problem:
                return self._smaller(arrays, problem)
            self.proof.inputs += 1
        return None

    def _every_array(self) -> Iterator[Arrays] | None:
        """Returns all inputs of a program of few bools; None for other programs."""
        sizes = [p.tensor.size for p in self.before.params]
        if any(d.kind != "b" for d in self.dtypes) or self.before.symbols:
            return None
        total = sum(int(s) for s in sizes if isinstance(s, int))
        return self._of_bits(total) if total <= CELLS else None

    def _of_bits(self, total: int) -> Iterator[Arrays]:
        for number in range(1 << total):
            bits = iter([bool(number >> i & 1) for i in range(total)])
            yield [
                np.asarray(list(islice(bits, int(p.tensor.size)))).reshape(p.shape)  # pyright: ignore[reportArgumentType,reportCallIssue]
                for p in self.before.params
            ]

    def _drawn(self) -> Iterator[Arrays]:
        for seed in range(SEEDS):
            truth = Truth(self.before, self.seed + seed)
            self.before, self.after = truth.func, self.after.bind(truth.sizes)
            yield from truth.inputs.values()

    def _smaller(self, arrays: Arrays, problem: str) -> Counterexample:
        """Replaces elements of a counterexample by simpler ones while it stays one."""
        arrays, left = [np.array(a) for a in arrays], SHRINKS
        for array, dtype in zip(arrays, self.dtypes, strict=True):
            flat = array.reshape(-1)
            for place in range(flat.size):
                held = flat[place]
                rounded = [held.dtype.type(f"{float(held):.1g}")] if dtype.kind == "f" else []
                for value in (0, 1, *rounded):
                    left -= 1
                    if left < 0 or flat[place] == value:
                        break
                    flat[place] = value
                    said = self._problem(self.before, self.after, arrays)
                    if said:
                        problem = said
                        break
                    flat[place] = held
        return Counterexample(self.before, self.after, arrays, problem)

    def _problem(self, before: Func, after: Func, arrays: Arrays) -> str:
        """Returns the first difference of the results on some inputs; "" if they agree."""
        truth = self._truth(before, arrays)
        if not truth.kinds:
            return ""
        problem = truth.verdict("", GIVEN, after).problem
        if problem or not self.exact:
            return problem
        for i, have in enumerate(interpreted(after, arrays)):
            want = np.asarray(truth.results[GIVEN][i])
            off = ulps(want, np.asarray(have), before.results[i].dtype)
            if off.max(initial=0) > 0:
                return f"result {i} differs by {off.max():.3g} ULP"
            if _other_zero(want, np.asarray(have)).any():
                return f"result {i} has a zero of the other sign"
        return ""

    def _truth(self, func: Func, arrays: Arrays) -> Truth:
        truth = Truth(func, given=arrays, kinds=())
        truth.allow(self.proof.stated)
        return truth


def _is_accurate(truth: Truth, number: int, dtype: DType) -> np.ndarray:
    """Returns a mask of the elements of a result that the program itself computes well."""
    return truth.own_errors(GIVEN, number) <= TOLERANCE.get(dtype.name, 0.0)


def _other_zero(want: np.ndarray, have: np.ndarray) -> np.ndarray:
    """Returns where both are zeros of different signs."""
    if want.dtype.kind != "f":
        return np.zeros(want.shape, np.bool_)
    return (want == 0) & (have == 0) & (np.signbit(want) != np.signbit(have))


def _first_difference(want: np.ndarray, have: np.ndarray) -> list[int]:
    if want.shape != have.shape:
        return []
    with np.errstate(invalid="ignore"):
        differs = ~((want == have) | ((want != want) & (have != have)))
    return [int(i) for i in np.argwhere(differs)[0]] if differs.any() else []


def _shown(value: np.ndarray) -> str:
    array = np.asarray(value)
    if array.size == 1:
        return str(array.reshape(-1)[0])
    return np.array2string(array, separator=", ", max_line_width=80).replace("\n", "\n" + " " * 10)


def _indented(func: Func) -> list[str]:
    return [f"  {line}" for line in str(func).strip().splitlines()]
