"""Interleaved rounds: every system runs once per round, so that slow periods affect all equally."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stack.errors import StackError
from stack.explore.terminal import Loud

ROUNDS = 7
LEAST = 5
WINDOW = 0.02  # minimal duration of one measurement in seconds
WARM = 0.25  # seconds of warm-up for each system
REST = 0.01  # seconds between two systems
NOISY = 0.05  # relative spread above which a time or ratio is not reported
SLOW = 2.0  # seconds per call above which a system gets only LEAST rounds


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one entry for each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over all rounds of the seconds per call."""
        return quantile(self.rounds, 0.5)

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the seconds per call over all rounds."""
        return quantile(self.rounds, 0.75) - quantile(self.rounds, 0.25)


@dataclass(frozen=True)
class Ratio:
    """The time of one system divided by that of another, taken within each round.

    Shared machines change their speed for seconds at a time. Both systems of a round are affected
    equally, so ratios are stable even if times are not.
    """

    median: float
    low: float  # the quartiles
    high: float

    def __str__(self) -> str:
        noisy = ", noisy" if self.is_noisy else ""
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}{noisy})"

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the ratios over all rounds."""
        return self.high - self.low

    @property
    def is_noisy(self) -> bool:
        """True if the ratio varies too much from round to round to be averaged with others."""
        return is_noisy(self.median, self.spread)


def ratio(own: Sequence[float], other: Sequence[float]) -> Ratio:
    """Returns the ratio of `other` to `own` by rounds; surplus rounds are ignored."""
    found = [b / a for a, b in zip(own, other, strict=False)]
    return Ratio(*(quantile(found, share) for share in (0.5, 0.25, 0.75)))


def is_noisy(time: float, spread: float | None) -> bool:
    """True if a time or ratio varies too much to be reported.

    That is so if `spread`, the distance between its quartiles, is more than the share NOISY of it.
    """
    return (spread or 0.0) > NOISY * time


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile with linear interpolation, or nan for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Interrupted(KeyboardInterrupt):
    """An interrupt while systems are timed; `timings` are those of the rounds so far."""

    def __init__(self, timings: list[Timing | Exception]) -> None:
        super().__init__()
        self.timings = timings


# calls a system a number of times and returns the total seconds
Repeat = Callable[[int], float]


def repeat(call: Callable[[], object]) -> Repeat:
    """Returns a function that calls `call` a given number of times; it returns the seconds."""

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start

    return run


def warm_up(run: Repeat, least: float = WARM, window: float = WINDOW) -> int:
    """Calls `run` for `least` seconds; returns how many calls last about `window` seconds."""
    total = first = run(1)
    best = first
    while total < least:
        taken = run(1)
        best = min(best, taken)
        total += taken
    return max(1, math.ceil(window / max(best, 1e-7)))


def _settle(system: Repeat, times: Sequence[float]) -> None:
    """Pauses before `system` is timed, until the threads of the system before it stop spinning.

    Then calls `system` once to fill the caches, unless its calls take long.
    """
    time.sleep(REST)
    if not times or times[-1] < SLOW / 10:
        system(1)


def interleave(
    systems: Sequence[Repeat], rounds: int = ROUNDS, window: float = WINDOW, warm: float = WARM
) -> list[Timing | Exception]:
    """Times all systems in rounds; each round starts with a different one.

    A system that raises is dropped, and its exception replaces its timing. Raises Interrupted,
    with the rounds so far, for an interrupt after the first round.
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
    gc.freeze()  # exempt live objects from the collection after each round
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
    except KeyboardInterrupt:
        found = _timings(times, failed)
        if not any(isinstance(timing, Timing) for timing in found):
            raise
        raise Interrupted(found) from None
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return _timings(times, failed)


def _timings(
    times: Sequence[Sequence[float]], failed: Mapping[int, Exception]
) -> list[Timing | Exception]:
    """Returns each system's timing over the rounds, or the exception that explains its absence."""
    late = StackError("interrupted before its first round")
    return [
        failed.get(i) or (Timing(tuple(rounds)) if rounds else late)
        for i, rounds in enumerate(times)
    ]


def ratio_cell(ratio: str | None, is_ours: bool = True) -> str:
    """Formats how the time of another system compares to a row's, as `0.87x (0.85 to 0.90)`.

    A comparison that ours loses has to be noticed, unless it is noisy.
    """
    if not ratio:
        return "-"
    median, times, _ = ratio.partition("x")
    is_lost = bool(times) and float(median) < 1 and "noisy" not in ratio
    return Loud(ratio) if is_ours and is_lost else ratio
