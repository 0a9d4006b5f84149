"""Interleaved rounds: every system once in each round, so that a slow minute hits all alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUNDS = 7
LEAST = 5
WINDOW = 0.02  # seconds that one measurement lasts at least
WARM = 0.25  # seconds of warm-up for each system
REST = 0.01  # seconds between two systems
NOISY = 0.05  # spread of a time or a ratio, as a share of it, above which it holds for nothing
SLOW = 2.0  # seconds for a call after which LEAST rounds have to do


@dataclass(frozen=True)
class Timing:
    """Seconds for one call, one entry for each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return quantile(self.rounds, 0.5)

    @property
    def spread(self) -> float:
        """Distance between the quartiles of the rounds."""
        return quantile(self.rounds, 0.75) - quantile(self.rounds, 0.25)


@dataclass(frozen=True)
class Ratio:
    """One system's times over another's, of the same rounds.

    Machines that are shared go from one speed to another for seconds: both systems of a round have
    the same, so that their ratio holds still where the times do not.
    """

    median: float
    spread: float  # distance between the quartiles

    @property
    def is_noisy(self) -> bool:
        """Whether it moves too much to be told."""
        return is_noisy(self.median, self.spread)


def ratio(own: Sequence[float], other: Sequence[float]) -> Ratio:
    """How many times as long as `own` the other takes, by rounds; those of the shorter count."""
    found = Timing(tuple(b / a for a, b in zip(own, other, strict=False)))
    return Ratio(found.median, found.spread)


def is_noisy(time: float, spread: float | None) -> bool:
    """Whether a time, or a ratio, moves too much to be told."""
    return (spread or 0.0) > NOISY * time


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile with linear interpolation; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# runs so many calls one after another and gives the seconds that all of them took
Repeat = Callable[[int], float]


def repeat(call: Callable[[], object]) -> Repeat:
    """Time calls in this process."""

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start

    return run


def warm_up(run: Repeat, least: float = WARM, window: float = WINDOW) -> int:
    """Call outside of the clock, and find how many calls one measurement should have."""
    total = first = run(1)
    best = first
    while total < least:
        taken = run(1)
        best = min(best, taken)
        total += taken
    return max(1, math.ceil(window / max(best, 1e-7)))


def _settle(system: Repeat, times: Sequence[float]) -> None:
    """Between systems: threads of the last one stop spinning, caches fill with this one's data."""
    time.sleep(REST)
    if not times or times[-1] < SLOW / 10:
        system(1)


def interleave(
    systems: Sequence[Repeat], rounds: int = ROUNDS, window: float = WINDOW, warm: float = WARM
) -> list[Timing | Exception]:
    """Time all systems in rounds; each round starts with another one.

    A system that raises drops out and its exception takes the place of its timing.
    """
    rounds = max(rounds, LEAST)
    failed: dict[int, Exception] = {}
    counts: dict[int, int] = {}
    times: list[list[float]] = [[] for _ in systems]
    for i, system in enumerate(systems):
        try:
            counts[i] = warm_up(system, warm, window)
        except Exception as error:
            failed[i] = error
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # what lives by now is not looked through again after each round
    gc.disable()
    try:
        for number in range(rounds):
            for step in range(len(systems)):
                i = (number + step) % len(systems)
                slow = bool(times[i]) and times[i][-1] > SLOW
                if i in failed or (slow and len(times[i]) >= LEAST):
                    continue
                try:
                    _settle(systems[i], times[i])
                    times[i].append(systems[i](counts[i]) / counts[i])
                except Exception as error:
                    failed[i] = error
            gc.collect()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return [failed[i] if i in failed else Timing(tuple(times[i])) for i in range(len(systems))]
