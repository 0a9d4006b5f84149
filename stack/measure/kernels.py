"""Cost report: work, time and roofline share of every kernel of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stack.explore.dump import intensity
from stack.explore.kernel_rows import kernel_rows
from stack.explore.table import scaled
from stack.explore.terminal import filled
from stack.ir.func import Func
from stack.measure.roofline import ABOVE, Ceilings, matmul_flops
from stack.measure.timing import Timing
from stack.run.backend import Executable, Kernel

ROUNDS = 15
UNDER_LOAD = (
    "a share of the roof far above 100 %: the roof was measured under load, or the data of the"
    " kernel was still in a cache; measure again on an idle machine"
)


class Work(Protocol):
    """The work of a kernel: operations, and bytes to and from memory."""

    @property
    def flops(self) -> float: ...

    @property
    def bytes(self) -> float: ...


def kernel_timings(
    executable: Executable, storage: Sequence[np.ndarray], rounds: int = ROUNDS
) -> list[Timing] | None:
    """Returns the seconds of every kernel per round, or None if the backend cannot measure them."""
    if executable.profile is None:
        return None
    executable.profile(storage)
    runs = [executable.profile(storage) for _ in range(rounds)]
    return [Timing(tuple(times)) for times in zip(*runs, strict=True)]


def kernel_times(
    executable: Executable, storage: Sequence[np.ndarray], rounds: int = ROUNDS
) -> list[float] | None:
    """Returns the median seconds of every kernel, or None if the backend cannot measure them."""
    found = kernel_timings(executable, storage, rounds)
    return None if found is None else [t.median for t in found]


def floor_of(kernel: Work, ceilings: Ceilings, dtype: str) -> float:
    """Returns the least seconds of a kernel: its operations, or its bytes, at the machine's peak.

    The longer of the two times counts. `dtype` selects the peak rate of arithmetic.
    """
    return max(kernel.flops / ceilings.of(dtype), kernel.bytes / ceilings.bytes_at(kernel.bytes))


def widest_dtype(func: Func) -> str:
    """Returns the element type with the most flops in a function's contractions."""
    flops = matmul_flops(func)
    return max(flops, key=flops.__getitem__, default="f32")


def kernel_report(
    kernels: Sequence[Kernel], times: Sequence[float] | None, ceilings: Ceilings, dtype: str
) -> str:
    """Formats a table of kernels and their sum: work, time, and the share of the roof.

    Kernels of equal layers share a line. If a kernel is faster than the roof, a last line says that
    the roof was measured too low.
    """
    whole = sum(times) if times is not None else None

    def cells(held: Sequence[Kernel], numbers: Sequence[int]) -> list[object]:
        taken = sum(times[i] for i in numbers) if times is not None else None
        floor = sum(floor_of(k, ceilings, dtype) for k in held)
        work = _work(sum(k.flops for k in held), sum(k.bytes for k in held))
        return [*work, *_time(taken, floor, whole)]

    head = ["flops", "bytes", "flop/byte", "time", "share", "of roof"]
    drop = ["flop/byte", "flops"]
    text = kernel_rows(kernels, head, cells, drop, has_total=True, widest=40)
    if not above_roof(kernels, times, ceilings, dtype):
        return text
    return f"{text}\n{filled(UNDER_LOAD)}"


def above_roof(
    kernels: Sequence[Work], times: Sequence[float] | None, ceilings: Ceilings, dtype: str
) -> bool:
    """True if a kernel took less time than the roof allows, so the roof was measured too low."""
    pairs = zip(kernels, times or (), strict=False)
    return any(taken and floor_of(k, ceilings, dtype) > ABOVE * taken for k, taken in pairs)


def _work(flops: float, moved: float) -> list[object]:
    return [scaled(flops), scaled(moved, "B"), intensity(flops, moved)]


def _time(taken: float | None, floor: float, total: float | None) -> list[object]:
    if not taken or not total:
        return [None, None, None]
    return [
        f"{taken * 1e6:.0f} us",
        f"{100 * taken / total:.0f} %",
        f"{100 * floor / taken:.0f} %",
    ]
