"""Ceilings of this machine, measured in the same run as everything else."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.ir.cost import cost
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import reads_by_data
from stack.ir.types import TensorType, TupleType
from stack.measure.peak import fma_peak
from stack.processors import usable_processors

SIZES = {"f32": 1536, "bf16": 2048}
LONE = 640
COPY_SIZES = (4 << 20, 16 << 20, 64 << 20, 256 << 20)
ROUNDS = 7
# A kernel this much faster than the roof shows that the roof was measured too low. Memory that is
# only read may be some percent faster than a copy, whose reads and writes take turns.
ABOVE = 1.1
SECONDS = 2.0  # time limit per number: for an emulated type, a matmul takes minutes


@dataclass(frozen=True)
class Ceilings:
    """Peaks of this machine: scalar operations and bytes per second.

    `flops` are by element type, from large matmuls. `copies` are by bytes read, and count reads and
    writes; sizes that fit a cache are faster. `how` describes the measurements.
    """

    flops: dict[str, float]
    copies: dict[int, float]
    threads: int
    how: str

    @staticmethod
    def read(held: Mapping[str, Any]) -> Ceilings:
        """Reads the ceilings of a run's manifest."""
        copies = {int(size): float(rate) for size, rate in held["copies"].items()}
        return Ceilings(dict(held["flops"]), copies, int(held["threads"]), str(held["how"]))

    @property
    def bytes(self) -> float:
        """The rate of a copy that fits no cache."""
        return self.copies[max(self.copies)]

    def bytes_at(self, size: float) -> float:
        """Returns the rate for `size` bytes of traffic: that of the largest copy with no more."""
        fitting = [s for s in self.copies if 2 * s <= size]
        return self.copies[max(fitting, default=min(self.copies))]

    def of(self, dtype: str) -> float:
        """Returns the peak for an element type, or that of f32 if it was not measured."""
        return self.flops.get(dtype) or self.flops["f32"]

    def or_better(self, other: Ceilings) -> Ceilings:
        """Returns the higher one of each rate in two measurements of the same machine."""
        flops = {k: max(v, other.flops.get(k, 0.0)) for k, v in self.flops.items()}
        copies = {k: max(v, other.copies.get(k, 0.0)) for k, v in self.copies.items()}
        return Ceilings(flops, copies, self.threads, self.how)

    def as_dict(self) -> dict[str, Any]:
        """Returns a dictionary for JSON."""
        gigaflops = {f"F_{k}_gflops": round(v / 1e9, 1) for k, v in self.flops.items()}
        sizes = {f"{s >> 20} MiB": round(v / 1e9, 2) for s, v in self.copies.items()}
        copied = {"B_gbytes": round(self.bytes / 1e9, 2), "B_gbytes_by_size": sizes}
        return {**gigaflops, **copied, "threads": self.threads, "how": self.how}


def best_time(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Returns the best time of several calls after a warm-up call; fewer calls if slow."""
    call()
    times: list[float] = []
    while len(times) < rounds and sum(times) < SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _module(name: str) -> Any:
    """Imports a framework; returns None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def thread_count() -> int:
    """Returns the number of compute threads: those of torch if installed, else the cores."""
    torch = _module("torch")
    return int(torch.get_num_threads()) if torch is not None else usable_processors()


@contextmanager
def thread_limit(count: int) -> Generator[None]:
    """Sets the number of threads of torch, which our kernels use too; 0 changes nothing."""
    torch = _module("torch") if count else None
    before = torch.get_num_threads() if torch is not None else 0
    if torch is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


def measure_ceilings(quick: bool = False) -> Ceilings:
    """Measures the best of several rounds: a ceiling is a maximum, not an average."""
    rounds = 3 if quick else ROUNDS
    rng = np.random.default_rng(0)
    flops: dict[str, float] = {}
    how: list[str] = []
    n = SIZES["f32"]
    a = rng.standard_normal((n, n), dtype=np.float32)
    b = rng.standard_normal((n, n), dtype=np.float32)
    flops["f32"] = 2 * n**3 / best_time(lambda: a @ b, rounds)
    how.append(f"f32 {n}^3 by NumPy")
    threads = thread_count()
    torch = _module("torch")
    if torch is not None:
        for dtype, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            # a busy machine rarely has all cores free for a matmul, but often one
            lone = threads * lone_rate(torch, kind, 3 * rounds)
            n, rate = SIZES[dtype], 0.0
            if 2 * n**3 / lone < SECONDS:
                x, y = (torch.randn(n, n).to(kind) for _ in range(2))
                rate = 2 * n**3 / best_time(lambda x=x, y=y: x @ y, rounds)
                how.append(f"{dtype} {n}^3 by torch")
            if lone > max(rate, flops.get(dtype, 0.0)):
                how.append(f"{dtype} {LONE}^3 on one thread, times {threads}")
            flops[dtype] = max(lone, rate, flops.get(dtype, 0.0))
    peak = fma_peak(rounds)
    if peak:
        flops["f32"] = max(peak, flops["f32"])
        how.append("f32 fma chains of our own")
    if flops.get("bf16", flops["f32"]) < flops["f32"]:
        flops["bf16"] = flops["f32"]
        how.append("bf16 as f32")
    sizes = COPY_SIZES[1::2] if quick else COPY_SIZES
    copies = copy_rates(sizes, rounds)
    how.append("copies of " + ", ".join(f"{s >> 20} MiB" for s in sizes))
    return Ceilings(flops, copies, threads, ", ".join(how))


def lone_rate(torch: Any, kind: Any, rounds: int) -> float:
    """Returns the flop/s of a matmul of element type `kind` on one thread."""
    with thread_limit(1):
        x, y = (torch.randn(LONE, LONE).to(kind) for _ in range(2))
        return 2 * LONE**3 / best_time(lambda: x @ y, rounds)


def copy_rates(sizes: Sequence[int], rounds: int = ROUNDS) -> dict[int, float]:
    """Returns bytes read and written per second, by bytes that a copy reads."""
    torch = _module("torch")
    return {size: _copy_rate(size, torch, rounds) for size in sizes}


def _copy_rate(size: int, torch: Any, rounds: int) -> float:
    """Returns bytes read and written per second by a copy of `size` bytes."""
    source = np.ones(size // 4, dtype=np.float32)
    target = np.empty_like(source)
    taken = best_time(lambda: np.copyto(target, source), rounds)
    if torch is not None:
        x, y = torch.from_numpy(source), torch.from_numpy(target)
        taken = min(taken, best_time(lambda: y.copy_(x), rounds))
    return 2 * size / taken


def matmul_flops(func: Func) -> dict[str, float]:
    """Returns the flops of a function's contractions, by element type of their operands."""
    found: dict[str, float] = {}
    for node in _contractions(func):
        dtype = node.args[0].dtype.name
        found[dtype] = found.get(dtype, 0.0) + _flops(node)
    return found


def _contractions(func: Func) -> list[Node]:
    found: list[Node] = []
    pending = [func.body]
    while pending:
        block = pending.pop()
        for node in block.nodes:
            if node.op in ("dot", "conv"):
                found.append(node)
            pending.extend(node.blocks)
    return found


def _flops(node: Node) -> float:
    value = cost(node).flops
    return float(value) if isinstance(value, int | float) else 0.0


def least_bytes(func: Func, given: Sequence[float] = ()) -> float:
    """Returns the least traffic: every used parameter read once, every result written once.

    Of a parameter that only gathers read, no more than their results is counted.

    `given`: bytes of memory of each parameter; default: the size of the array.
    """
    sizes = given or [_bytes(p.type) for p in func.params]
    read = sum(min(size, _read(func, p)) for p, size in zip(func.params, sizes, strict=True))
    return read + sum(_bytes(r.type) for r in func.results)


def _read(func: Func, param: Node) -> float:
    """Returns the bytes of a parameter that a function reads, at most."""
    if param in func.results:
        return math.inf
    users = [n for n in func.nodes if param in n.args]
    picked = all(reads_by_data(n) and n.args.index(param) == 0 for n in users)
    return sum(_bytes(n.type) for n in users) if picked else math.inf


def memory_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of distinct memory elements of a strided array, which may overlap."""
    if 0 in shape:
        return 0
    steps = [(n, abs(stride)) for n, stride in zip(shape, strides, strict=True)]
    places = math.prod(n for n, stride in steps if stride)
    return min(places, sum((n - 1) * stride for n, stride in steps) + 1)


def _bytes(type_: TensorType | TupleType) -> float:
    items = type_.items if isinstance(type_, TupleType) else (type_,)
    return float(sum(t.bytes for t in items if isinstance(t.bytes, int)))


def floor_seconds(
    func: Func, ceilings: Ceilings, given: Sequence[float] = (), work: float = 1.0
) -> float:
    """Returns a lower bound in seconds: contractions at peak rate, or the bytes.

    `given`: as for `least_bytes`. `work`: the share of the contractions that must be computed.
    """
    compute = sum(n / ceilings.of(dtype) for dtype, n in matmul_flops(func).items())
    size = least_bytes(func, given)
    return max(work * compute, size / ceilings.bytes_at(size))
