"""Breakdown of a step's time and memory on GPUs: the slowest rank's clock, a trace."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from stack.demos import rank


def timed(call: Callable[[], Any], device: torch.device, rounds: int) -> dict[str, float]:
    """Returns the median milliseconds of a call on the slowest rank, and its spread."""
    rank.wait(device)
    found = rank.slowest([rank.elapsed(call, 1, device) for _ in range(rounds)], device)
    middle = statistics.median(found)
    inner = found[1:-1] if rounds > 3 else found
    return {"ms": middle * 1e3, "spread": (inner[-1] - inner[0]) / middle}


def peaks(device: torch.device) -> list[float]:
    """Returns the peak GiB of tensors on each GPU since the last reset."""
    if device.type != "cuda":
        return []
    held = torch.tensor([torch.cuda.max_memory_allocated() / 2**30], device=device)
    found = [torch.empty_like(held) for _ in range(dist.get_world_size())]
    dist.all_gather(found, held)
    return [float(n) for n in found]


def mean(value: float, device: torch.device) -> float:
    """Returns the mean of `value`, which differs from rank to rank, over all ranks."""
    held = torch.tensor([value], device=device, dtype=torch.float64)
    dist.all_reduce(held)
    return float(held) / dist.get_world_size()


def shares(call: Callable[[], Any], device: torch.device, rounds: int = 2) -> dict[str, Any]:
    """Returns milliseconds of computing, exposed communication and idling of a call on this GPU."""
    if device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    dist.barrier()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    spans: list[tuple[float, float, bool]] = []
    longest: Counter[str] = Counter()
    for e in found.events() or ():
        if e.device_type.name == "CUDA":
            start, end = e.time_range.start, e.time_range.end
            spans.append((start, end, "nccl" in e.name.lower()))
            longest[e.name[:80]] += (end - start) / 1e3 / rounds
    computes = covered([(start, end) for start, end, moves in spans if not moves])
    works = covered([(start, end) for start, end, _ in spans])
    whole = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    each = 1e3 * rounds
    return {
        "compute_ms": computes / each,
        "exposed_ms": (works - computes) / each,
        "idle_ms": (whole - works) / each,
        "moving_ms": covered([(start, end) for start, end, moves in spans if moves]) / each,
        "longest_ms": dict(longest.most_common(12)),
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the length of the union of time spans, some of which may overlap."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
