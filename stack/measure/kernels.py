"""Cost report: work, time and roofline share of every kernel of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stack.explore.dump import intensity, source_text
from stack.explore.table import scaled, table
from stack.ir.node import Func
from stack.measure.roofline import Ceilings, matmul_flops
from stack.measure.timing import Timing
from stack.run.backend import Executable, Kernel

ROUNDS = 15
ABOVE = 1.02  # share of the roof above which the roof cannot be right
UNDER_LOAD = (
    "a share of the roof above 100 %: the roof was measured under load, or the data of the kernel"
    " was still in a cache; measure again on an idle machine"
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
    """Returns the least seconds of a kernel: its operations at peak rate, or its bytes."""
    return max(kernel.flops / ceilings.of(dtype), kernel.bytes / ceilings.bytes_at(kernel.bytes))


def widest_dtype(func: Func) -> str:
    """Returns the element type with the most flops in a function's contractions."""
    flops = matmul_flops(func)
    return max(flops, key=flops.__getitem__, default="f32")


def kernel_report(
    kernels: Sequence[Kernel], times: Sequence[float] | None, ceilings: Ceilings, dtype: str
) -> str:
    """Formats a line for each kernel, and one for all, and says if the roof was measured low."""
    rows: list[list[object]] = []
    known = times if times is not None else [None] * len(kernels)
    total = sum(times) if times is not None else None
    for kernel, taken in zip(kernels, known, strict=True):
        floor = floor_of(kernel, ceilings, dtype)
        rows.append(
            [
                kernel.name,
                kernel.kind,
                *_work(kernel.flops, kernel.bytes),
                *_time(taken, floor, total),
                source_text(list(kernel.source)),
            ]
        )
    flops, moved = sum(k.flops for k in kernels), sum(k.bytes for k in kernels)
    floors = sum(floor_of(k, ceilings, dtype) for k in kernels)
    rows.append(["all", "", *_work(flops, moved), *_time(total, floors, total), ""])
    head = ["kernel", "kind", "flops", "bytes", "flop/byte", "time", "share", "of roof", "source"]
    text = table(head, rows, widest=40)
    return text if not above_roof(kernels, times, ceilings, dtype) else f"{text}\n{UNDER_LOAD}"


def above_roof(
    kernels: Sequence[Work], times: Sequence[float] | None, ceilings: Ceilings, dtype: str
) -> bool:
    """True if a kernel took less time than the roof allows: then the roof was measured too low."""
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
