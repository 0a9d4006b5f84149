"""Calibrate a target: replace the numbers of a target file by measurements of this machine.

Numbers that are not measured are copied from the base, and marked so. The machine should be idle;
on a busy one the numbers are too low.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.errors import UsageError
from stack.measure.gpu_ceilings import gpu_ceilings, gpu_text, load_torch
from stack.measure.gpu_timing import measure
from stack.measure.peak import fma_count, fma_peak, fma_seconds
from stack.measure.roofline import best_time, lone_rate, thread_count
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND, DEVICE_BACKEND
from stack.target import Cpu, Gpu, Target, cpu_at_hand
from stack.target.files import numbers_of
from stack.target.host import NATIVE

FAR = 256 << 20  # bytes of a copy that fits no cache
WHOLE = 8  # a copy inside a cache uses this fraction of it per side
CHAIN = 200  # kernels in a CUDA graph that do almost nothing
LINE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")  # of the second-level cache
Found = dict[str, tuple[float, str]]  # by number: what was measured, and how
Say = Callable[[str], None]


def base_at_hand() -> Target:
    """Returns the target of this machine's GPU, or of its CPU if it has none."""
    backend: Backend = plugins.load("stack.backends", DEVICE_BACKEND)
    name = DEVICE_BACKEND if backend.missing() is None else DEFAULT_BACKEND
    backend = plugins.load("stack.backends", name)
    assert backend.machine.at_hand is not None
    return backend.machine.at_hand({})


def calibrated(base: Target, name: str, say: Say = lambda _: None) -> Target:
    """Returns a copy of `base` with the numbers that were measured on this machine.

    Args:
        base: gives the kind of machine, and the numbers that are not measured.
        name: of the new target.
        say: called with progress messages.

    Raises:
        BackendMissing: the base is a GPU, and there is none here.
    """
    if isinstance(base, Gpu):
        return _with(base, name, *_gpu_numbers(base, say))
    assert isinstance(base, Cpu)
    here = replace(base, arch=NATIVE, features=cpu_at_hand().features)
    return _with(here, name, *_cpu_numbers(base, say))


def _with(base: Target, name: str, title: str, found: Found) -> Target:
    specs = numbers_of(type(base))
    values: dict[str, Any] = {}
    known = dict.fromkeys((*specs, *base.sources))
    sources = {k: f"as {base.name}: {base.sources.get(k, '')}".rstrip(": ") for k in known}
    for key, (value, how) in found.items():
        low, high = (specs[key].metadata[k] for k in ("low", "high"))
        if not low <= value <= high:
            raise UsageError(f"{key} was measured as {value:g}, not between {low:g} and {high:g}")
        values[key] = int(value) if specs[key].type == "int" else float(f"{value:.3g}")
        sources[key] = how
    return replace(base, name=name, title=title, sources=sources, **values)


# ---- CPU


def _cpu_numbers(base: Cpu, say: Say) -> tuple[str, Found]:
    from stack.explore.inventory import machine

    found: Found = {}
    if LINE.exists():
        text = LINE.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}[text[-1]]
        found["cache_bytes"] = int(text[:-1]) * unit, "read from the system"
    cache = int(found["cache_bytes"][0]) if found else base.cache_bytes
    say("copies in memory and in the L2 cache")
    found["memory_rate"] = _copy_rate(FAR), f"a copy of {FAR >> 20} MiB by one thread"
    near = cache // WHOLE
    found["cache_rate"] = _copy_rate(near), f"a copy of {near >> 10} KiB by one thread"
    threads = thread_count()
    found["cores"] = threads, "threads that compute"
    say("chains of multiply-adds")
    peak = fma_peak()
    if peak:
        found["f32_rate"] = peak / threads, "chains of multiply-adds, on every thread"
        found["launch"] = _wake_seconds(base, peak, threads), "a kernel of two threads, over one"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return machine(), found
    say("matmuls of 16-bit floats")
    rate = lone_rate(torch, torch.bfloat16, 20)
    found["bf16_rate"] = rate, "a library matmul, by one thread"
    return machine(), found


def _copy_rate(size: int) -> float:
    """Returns the bytes read and written per second by one thread."""
    source = np.ones(size // 4, dtype=np.float32)
    target = np.empty_like(source)
    times = max(1, (1 << 24) // size)  # for a small copy, call overhead would dominate

    def copies() -> None:
        for _ in range(times):
            np.copyto(target, source)

    return 2 * size * times / best_time(copies)


def _wake_seconds(base: Cpu, peak: float, threads: int) -> float:
    """Returns the seconds that a kernel loses by waking a second thread.

    Compares a kernel too short to be shared among threads with one long enough, and subtracts the
    time of the additional work of each thread.
    """
    programs, rounds = 2, 2000
    # threshold above which kernels are shared among threads
    work = base.launch * base.clock * base.lanes
    steps = max(1, round(work / fma_count(programs, 1)))
    alone = fma_seconds(programs, max(1, steps // 2), rounds)
    shared = fma_seconds(programs, 2 * steps, rounds)
    more = fma_count(programs, 2 * steps) / 2 - fma_count(programs, max(1, steps // 2))
    return max(1e-7, shared - alone - more * threads / peak)


# ---- GPU


def _gpu_numbers(base: Gpu, say: Say) -> tuple[str, Found]:
    torch = load_torch()
    say("matmuls of 8192^3, and copies")
    ceilings = gpu_ceilings(torch, kinds=("bf16", "f32"))
    found: Found = {
        "memory_rate": (ceilings.bytes, "a copy of 1 GiB"),
        "bf16_rate": (ceilings.of("bf16"), "a library matmul of 8192^3, on random data"),
        "f32_rate": (ceilings.of("f32"), "a library matmul in f32, without TF32"),
    }
    say("copies in the cache, and empty kernels")
    size = base.cache_bytes // WHOLE
    found["cache_rate"] = _cache_rate(torch, size), f"copies of {size >> 10} KiB in a CUDA graph"
    found["launch"] = _launch_seconds(torch), "one more kernel in a CUDA graph"
    properties = torch.cuda.get_device_properties(0)
    found["processors"] = properties.multi_processor_count, "read from the device"
    shared = int(properties.shared_memory_per_block_optin)
    found["shared_bytes"] = shared, "read from the device"
    found["cache_bytes"] = int(properties.L2_cache_size), "read from the device"
    return gpu_text(torch), found


def _replayed(torch: Any, call: Callable[[], object], times: int) -> float:
    """Returns the seconds of one `call` on a GPU, from a CUDA graph that contains many of them."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return measure(torch, graph.replay, 20) / times


def _launch_seconds(torch: Any) -> float:
    x = torch.zeros(32, device="cuda")
    return _replayed(torch, lambda: x.add_(1), CHAIN)


def _cache_rate(torch: Any, size: int) -> float:
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    taken = _replayed(torch, lambda: target.copy_(source), CHAIN)
    return 2 * size / max(1e-9, taken - _launch_seconds(torch) / 2)
