"""Races a kernel written by hand against the generated one, and trusts neither.

Both compute the same group of a run. Before the clock starts, the kernel is checked on the group's
operands for several seeds, and on inputs of all kinds. Each timed call gets inputs that no call had
before, and its results are compared with those of the generated kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stack.errors import StackError, UsageError
from stack.explore.resume import executable_from, group_of, results_of
from stack.explore.saved_run import SavedRun
from stack.explore.steps import alone
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.node import Block
from stack.measure.hand_kernel import Hand, HandError
from stack.rewrite.check import difference
from stack.rewrite.inputs import GIVEN, random_inputs, sample_sizes
from stack.rewrite.truth import REJECTED, Arrays, Truth, interpreted
from stack.run.backend import Executable

SEEDS = 3
ROUNDS = 15
BOTH = 2  # errors of two kernels add up


@dataclass(frozen=True)
class Race:
    """The result of racing a kernel written by hand against the generated one.

    Attributes:
        func: the group of the kernel, as a function.
        expected: results of the interpreter for the first inputs.
        found: results of the kernel written by hand for the same inputs; empty if it failed there.
        problem: the error of that kernel, or "".
        kinds: the kinds of inputs on which it was checked.
        ours, hand: median seconds of a call of the generated kernel, and of that by hand; 0 if the
            latter is wrong.
    """

    func: Func
    expected: Sequence[np.ndarray]
    found: Sequence[np.ndarray]
    problem: str
    kinds: tuple[str, ...]
    ours: float = 0.0
    hand: float = 0.0

    @property
    def checks(self) -> str:
        """Says how the kernel was checked."""
        kinds = ", ".join(self.kinds)
        return f"each of {ROUNDS} timed calls; {SEEDS} seeds; inputs: {kinds}"


def race_kernel(run: SavedRun, kernel: str, code: str, backend: str, seed: int = 0) -> Race:
    """Checks and times the function `file.py:function` in place of a kernel of a run.

    Raises UsageError if the run has no such kernel or its group cannot be interpreted, and
    StackError if the backend cannot time single kernels.
    """
    group = _Group(run, kernel, seed)
    made = executable_from(group.func, group.stage, backend)
    if made.profile is None:
        raise StackError(f"backend {backend} does not measure single kernels")
    truths = [Truth(group.func, seed, group.operands(seed))]
    truths += [
        Truth(group.func, seed + i, group.operands(seed + i), kinds=()) for i in range(1, SEEDS)
    ]
    first = truths[0]
    if GIVEN not in first.kinds:
        raise UsageError(f"the group of {kernel} cannot be interpreted: {first.rejected}")
    expected = first.results[GIVEN]
    found: list[np.ndarray] = []
    try:
        hand = Hand(code, group.func, made.device)
        for truth in truths:
            _check(hand, truth, made, found)
        ours, others = _timed(hand, made, group, first, seed + SEEDS)
    except HandError as error:
        return Race(group.func, expected, found, str(error), first.kinds)
    return Race(group.func, expected, found, "", first.kinds, ours, others)


class _Group:
    """The group of a kernel: its function, and its operands in the program."""

    def __init__(self, run: SavedRun, kernel: str, seed: int) -> None:
        self.stage, func, group = group_of(run, kernel)
        sizes = sample_sizes(func, np.random.default_rng(seed)) if func.symbols else {}
        above = Func(func.name, Block(func.params, group.args), func.level)
        self.func, self.above = (f.bind(sizes) if f.symbols else f for f in (alone(group), above))
        self.base = self.operands(seed)

    def operands(self, seed: int) -> list[np.ndarray]:
        """Returns the operands of the kernel's group when the program runs on random inputs.

        If the program rejects these inputs, returns random operands.
        """
        try:
            return interpreted(self.above, random_inputs(self.above, seed))
        except REJECTED:
            return random_inputs(self.func, seed)

    def fresh(self, seed: int) -> list[np.ndarray]:
        """Returns operands for the group that no earlier call had, so that no result can be reused.

        Floats are the first operands times a random factor. Integers stay, since they may be
        indices; without floats, the program runs on new inputs.
        """
        types = [p.dtype for p in self.func.params]
        if not any(t.is_float for t in types):
            return self.operands(seed)
        factor = np.random.default_rng(seed).uniform(0.5, 1.5)
        return [
            decode(encode((a * factor).astype(a.dtype), t), t) if t.is_float else a
            for a, t in zip(self.base, types, strict=True)
        ]


def _run(hand: Hand, func: Func, inputs: Arrays) -> tuple[list[np.ndarray], float]:
    """Runs the kernel written by hand; returns results in the interpreter's format, and seconds."""
    ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
    results, seconds = hand(ready)
    return [decode(r, n.dtype) for r, n in zip(results, func.results, strict=True)], seconds


def _check(hand: Hand, truth: Truth, made: Executable, first: list[np.ndarray]) -> None:
    """Raises HandError if the kernel by hand is wrong on inputs where the generated one is right.

    Adds its first results to `first`, if that is empty.
    """
    for kind in truth.kinds:
        inputs = truth.inputs[kind]
        results, _ = _run(hand, truth.func, inputs)
        if not first:
            first += results
        problem = truth.error(kind, results)[1]
        if problem and not truth.error(kind, results_of(made, truth.func, inputs))[1]:
            raise HandError(f"{hand.code} is wrong: {problem} ({kind})")


def _timed(
    hand: Hand, made: Executable, group: _Group, truth: Truth, seed: int
) -> tuple[float, float]:
    """Returns median seconds of a call of the generated kernel, and of that written by hand.

    Raises HandError if their results of a timed call differ.
    """
    func, profile = group.func, made.profile
    assert profile is not None
    limits = [BOTH * truth.limit(GIVEN, i) for i in range(len(func.results))]
    ours: list[float] = []
    others: list[float] = []
    for number in range(ROUNDS + 1):
        inputs = group.fresh(seed + number)
        ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
        wanted = results_of(made, func, inputs)  # wakes the threads too, outside of the clock
        ours.append(sum(profile(ready)))
        found, seconds = _run(hand, func, inputs)
        others.append(seconds)
        for i, (want, have) in enumerate(zip(wanted, found, strict=True)):
            error = difference(want, have, func.results[i].dtype)
            if error > limits[i]:
                raise HandError(
                    f"{hand.code} is wrong in timed call {number}, on inputs that no call had"
                    f" before: result {i} differs by {error:.3g} of its largest value"
                )
    return median(ours[1:]), median(others[1:])  # the first call warms up
