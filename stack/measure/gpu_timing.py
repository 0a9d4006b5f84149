"""Timing on a device: CUDA events around calls that are queued ahead, in interleaved rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from stack.measure.timing import LEAST, Timing, quantile

L2_BYTES = 50 << 20
MOST_SETS = 16
WINDOW = 0.008  # minimal duration of one measurement in seconds
REPLAY = 2e-3  # below this, the host may be the bottleneck: replay calls from a CUDA graph
AHEAD = 2_000_000  # cycles that the device waits, so that launches queue up before timing starts
Call = Callable[[Any], Any]


def set_count(size: float) -> int:
    """Returns how many sets of `size` input bytes to rotate so that none stays in the L2 cache."""
    if size > 2 * L2_BYTES:
        return 1
    return min(MOST_SETS, 2 + math.ceil(2 * L2_BYTES / max(size, 1)))


class Clock:
    """Times one system: calls it on prepared inputs, or replays a CUDA graph of its calls.

    Args:
        torch: the module.
        call: takes one set of prepared inputs.
        sets: prepared inputs, which calls use in rotation.
        wait: for systems that use streams of their own. They are timed by the wall clock, including
            dispatch.
        cuda: False times on the CPU.
    """

    def __init__(
        self,
        torch: Any,
        call: Call,
        sets: Sequence[Any],
        wait: Callable[[], None] | None = None,
        cuda: bool = True,
    ) -> None:
        self.torch = torch
        self.call = call
        self.sets = list(sets)
        self.wait = wait
        self.cuda = cuda
        self.at = 0
        self.graph: Any = None
        self.note = ""
        self.is_spoiled = False

    def run(self, count: int) -> int:
        """Calls the system at least `count` times, and returns how often it was called.

        A CUDA graph always runs once for each set of inputs.
        """
        if self.graph is not None:
            turns = math.ceil(count / len(self.sets))
            for _ in range(turns):
                self.graph.replay()
            return turns * len(self.sets)
        for _ in range(count):
            self.at = (self.at + 1) % len(self.sets)
            self.call(self.sets[self.at])
        return count

    def seconds(self, count: int) -> float:
        """Returns the seconds per call, measured over `count` calls."""
        if not self.cuda or self.wait is not None:
            return self._wall(count)
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        import_module("stack.frameworks.torch_private").sleep_on_gpu(AHEAD)
        begin.record()
        done = self.run(count)
        end.record()
        cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / done

    def _wall(self, count: int) -> float:
        wait = self.wait or (lambda: None)
        wait()
        start = time.perf_counter()
        done = self.run(count)
        wait()
        return (time.perf_counter() - start) / done

    def prepare(self, window: float = WINDOW) -> int:
        """Warms up, and captures calls in a CUDA graph if they are short.

        Returns how many calls last about `window` seconds.
        """
        for held in self.sets:
            self.call(held)
        first = min(self.seconds(2), self.seconds(2))
        if first < REPLAY and self.cuda and self.wait is None:
            self._capture()
            first = self.seconds(len(self.sets))
        return max(1, min(2000, math.ceil(window / max(first, 1e-7))))

    def _capture(self) -> None:
        cuda = self.torch.cuda
        try:
            cuda.synchronize()
            graph = cuda.CUDAGraph()
            stream = cuda.current_stream()
            with cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for held in self.sets:
                    self.call(held)
        except Exception as error:
            cuda.synchronize()
            self.is_spoiled = True  # torch's generator still considers itself in capture
            self.note = f"no CUDA graph: {str(error).strip().splitlines()[0][:120]}"
            return
        self.graph = graph
        self.note = "replayed from a CUDA graph"


def interleave(clocks: Sequence[Clock], rounds: int) -> list[Timing | Exception]:
    """Times all systems in rounds; each round starts with a different one.

    A system that raises is dropped, and its exception replaces its timing.
    """
    counts: dict[int, int] = {}
    failed: dict[int, Exception] = {}
    times: list[list[float]] = [[] for _ in clocks]
    for i, clock in enumerate(clocks):
        try:
            counts[i] = clock.prepare()
        except Exception as error:
            failed[i] = error
    for number in range(max(rounds, LEAST)):
        for step in range(len(clocks)):
            i = (number + step) % len(clocks)
            if i in failed:
                continue
            try:
                times[i].append(clocks[i].seconds(counts[i]))
            except Exception as error:
                failed[i] = error
    return [failed[i] if i in failed else Timing(tuple(times[i])) for i in range(len(clocks))]


def measure(torch: Any, call: Callable[[], object], rounds: int = LEAST, count: int = 1) -> float:
    """Returns the seconds of a call: the least of `rounds` measurements of `count` calls each."""
    clock = Clock(torch, lambda _: call(), [None])
    clock.run(3)
    return quantile([clock.seconds(count) for _ in range(rounds)], 0.0)
