"""A rank started by torchrun: its group, device, timing, and measurements."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.cuda import nccl

Row = dict[str, Any]


def join(limit: float = 600.0) -> torch.device:
    """Joins the group, by NCCL if each rank has a GPU, else by gloo; returns the rank's device.

    `limit`: seconds that a rank waits for others.
    """
    waits = timedelta(seconds=limit)
    if torch.cuda.device_count() > int(os.environ["LOCAL_RANK"]):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
        dist.init_process_group("nccl", device_id=device, timeout=waits)
        return device
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=waits)
    return torch.device("cpu")


def name_of(device: torch.device) -> str:
    """Returns the name of the device that runs a rank."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "gloo process"


def wait(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed(call: Callable[[], Any], count: int, device: torch.device) -> float:
    """Returns the seconds per call of `count` consecutive calls; all ranks start together."""
    dist.barrier()
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / count / 1e3
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def race(
    calls: Sequence[Callable[[], Any]], size: int, device: torch.device, rounds: int = 7
) -> list[tuple[float, float] | str]:
    """Returns each call's median seconds on the slowest rank with their spread, or its error.

    The calls alternate. `size`: approximate bytes of a call; small ones are repeated more often. On
    a GPU, replays of a CUDA graph are timed.
    """
    count = 20 if size < 1 << 24 else 4
    if device.type != "cuda":
        count = max(1, min(count, (1 << 22) // size))
    found: list[Callable[[], Any] | str] = []
    for call in calls:
        try:
            found.append(_repeated(call, count, device))
        except (RuntimeError, TypeError) as error:
            found.append(str(error).partition("\n")[0])
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for own, repeated in zip(times, found, strict=True):
            if not isinstance(repeated, str):
                own.append(elapsed(repeated, 1, device) / count)
    return [f if isinstance(f, str) else _middle(t, device) for f, t in zip(found, times)]


def _repeated(call: Callable[[], Any], count: int, device: torch.device) -> Callable[[], Any]:
    for _ in range(3):
        call()
    wait(device)
    if device.type != "cuda":
        return lambda: [call() for _ in range(count)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return graph.replay


def _middle(times: Sequence[float], device: torch.device) -> tuple[float, float]:
    known = slowest(times, device)
    middle = statistics.median(known)
    return middle, (known[-2] - known[1]) / middle


def slowest(times: Sequence[float], device: torch.device) -> list[float]:
    """Returns each of `times` as its maximum over all ranks, sorted in ascending order."""
    found = torch.tensor(times, device=device, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return sorted(found.tolist())


# ---- what is measured


def head(device: torch.device, demo: str, args: str = "OUT") -> Row:
    """Returns the header of a file of measurements: date, device, versions and command."""
    ranks = dist.get_world_size()
    versions = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        versions["nccl"] = ".".join(map(str, nccl.version()))
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": f"{ranks} x {name_of(device)}",
        "versions": versions,
        "command": f"torchrun --nproc-per-node {ranks} -m stack.demos.{demo} {args}",
    }


def measure(demo: str, rows_of: Callable[[torch.device], Iterable[Row]]) -> None:
    """Runs a demo: the first rank prints the rows of all ranks, and writes OUT/DEMO.json."""
    doc = sys.modules[rows_of.__module__].__doc__ or ""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", help="folder for the measurements")
    args = parser.parse_args()
    device = join()
    torch.manual_seed(dist.get_rank())
    rows: list[Row] = []
    for row in rows_of(device):
        rows.append(row)
        if dist.get_rank() == 0:
            cells = (f"{k} {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in row.items())
            print("  ".join(cells), flush=True)
    if dist.get_rank() == 0 and args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        made = head(device, demo) | {"rows": rows}
        (args.out / f"{demo}.json").write_text(json.dumps(made, indent=1))
    dist.destroy_process_group()
