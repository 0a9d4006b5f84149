"""A Llama 3 on the GPUs of one host: our strategies against torch's FSDP2, DTensor and CP.

    torchrun --nproc-per-node 2 -m stack.demos.mesh_race OUT [--seconds 100] [--layers 4]
    python -m stack.demos.mesh_tables OUT/mesh_race.json       its tables and plots

All systems train the same model on the same tokens in one run, with SGD in bf16. For each one it
measures tokens per second, the memory of each GPU, and how long the GPU computes, communicates
without computing, and idles (pipeline waits and host time). For ours it also shows the simulator's
prediction, whose link is fitted to the all-gathers of the same run. Without GPUs everything runs on
gloo processes, with a model of a few hundred words.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stack.plugins as plugins
from stack.demos import mesh_torch, rank
from stack.demos.collectives import library
from stack.demos.llama import LLAMA3_8B, Attend, Llama, Sizes, attended, attended_by_hand, data
from stack.demos.mesh_clock import mean, peaks, shares, timed
from stack.demos.mesh_ours import RATE, Call, Ours, strategies
from stack.frontends.torch.distributed.mesh import leave
from stack.ops.collectives.network import bus_bandwidth, fitted
from stack.sim import Simulation, machine

SMALL = Sizes(2, 128, 256, 16, 8, 256, 32)
LONG, SMALL_LONG = 65536, 64  # context length that ranks share
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
LATE = 60.0  # seconds that a rank waits for others


class Race:
    """The ranks of one host, and the results of each system."""

    def __init__(self, device: torch.device, given: argparse.Namespace) -> None:
        self.device, self.given = device, given
        self.end = time.monotonic() + given.seconds
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.rows: list[dict[str, Any]] = []
        self.moved: list[dict[str, Any]] = []

    def write(self) -> None:
        """Writes the rows measured so far as JSON to the output folder."""
        if self.rank or self.given.out is None:
            return
        args = shlex.join("OUT" if a == str(self.given.out) else a for a in sys.argv[1:])
        made = {
            "schema": "stack.mesh_race/1",
            **rank.head(self.device, "mesh_race", args),
            "systems": self.rows,
            "collectives": self.moved,
        }
        self.given.out.mkdir(parents=True, exist_ok=True)
        (self.given.out / "mesh_race.json").write_text(json.dumps(made, indent=1) + "\n")

    @property
    def is_late(self) -> bool:
        """True on all ranks if the time limit has passed on at least one of them."""
        return bool(rank.slowest([time.monotonic() > self.end], self.device)[-1])

    def enter(self, name: str, sizes: Sizes, make: Callable[[], Call | tuple[Call, Any]]) -> None:
        """Measures one system and adds its row; an error becomes the note of the row."""
        row: dict[str, Any] = {"system": name, "model": asdict(sizes)}
        self.rows.append(row)
        if self.is_late:
            row["note"] = "no time left"
            return
        start = time.perf_counter()
        try:
            made = make()
            step, expected = made if isinstance(made, tuple) else (made, None)
            tidy(self.device)
            row["first_loss"] = mean(float(step()), self.device)
            row["first_s"] = time.perf_counter() - start
            step()  # a graph, if any, is recorded here
            row |= timed(step, self.device, self.given.rounds)
            row["tokens_per_s"] = sizes.batch * sizes.tokens / row["ms"] * 1e3
            row["peak_gib"] = peaks(self.device)
            row |= shares(step, self.device)
            row["last_loss"] = mean(float(step()), self.device)
            row |= predicted(expected)
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"
            if self.rank == 0:
                traceback.print_exc()
            else:
                print(f"rank {self.rank}, {name}: {row['note']}", file=sys.stderr, flush=True)
        step = made = None  # of a system that failed, too
        row |= tidy(self.device)
        if self.rank == 0:
            print(line(row), flush=True)
        self.write()


def tidy(device: torch.device) -> dict[str, float]:
    """Frees memory and starts to measure peaks. Returns the GiB of a GPU that tensors still hold,
    and those that this process held at the peak, with the memory of CUDA graphs.
    """
    gc.collect()  # modules under torch's strategies are in reference cycles
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize()  # memory that a stream still uses is not released
    torch.cuda.empty_cache()
    held = {
        "left_gib": torch.cuda.memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
    }
    torch.cuda.reset_peak_memory_stats()
    return held


def predicted(expected: Simulation | None) -> dict[str, float]:
    """Returns a simulated training step as entries of a result row; {} without a simulation."""
    if expected is None:
        return {}
    return {
        "predicted_ms": expected.seconds * 1e3,
        "predicted_exposed_ms": expected.exposed * 1e3,
        "predicted_gib": expected.allocated / 2**30,
    }


def line(row: dict[str, Any]) -> str:
    """Formats the result of one system as one row of the table."""
    if "note" in row:
        return f"{row['system']:<28} {row['note']}"
    parts = "".join(
        f"  {name} {row[f'{name}_ms']:.1f}"
        for name in ("compute", "exposed", "idle")
        if f"{name}_ms" in row
    )
    told = f" (predicted {row['predicted_ms']:.1f})" if "predicted_ms" in row else ""
    memory = ", ".join(f"{n:.1f}" for n in row["peak_gib"])
    known = f" (predicted {row['predicted_gib']:.1f})" if "predicted_gib" in row else ""
    return (
        f"{row['system']:<28} {row['ms']:8.2f} ms{told}  spread {row['spread']:.1%}"
        f"  {row['tokens_per_s']:.0f} tokens/s{parts}  [{memory}] GiB{known}"
        f"  loss {row['first_loss']:.4f} to {row['last_loss']:.4f}  first {row['first_s']:.1f} s"
    )


# ---- collectives


def seconds(call: Callable[[], Any], size: int, device: torch.device) -> float:
    """Returns the median seconds of a call on the slowest rank, over 5 rounds."""
    for _ in range(3):
        call()
    count = 50 if size < 1 << 22 else 8
    if device.type != "cuda":
        count = max(2, min(count, (1 << 22) // size))
    found = [rank.elapsed(call, count, device) for _ in range(5)]
    return rank.slowest(found, device)[2]


def collectives(sizes: Iterable[int], device: torch.device) -> list[dict[str, Any]]:
    """Measures bus bandwidth by size; every second size is predicted from a fit to the others."""
    ranks = dist.get_world_size()
    rows: list[dict[str, Any]] = []
    for name in COLLECTIVES:
        found: dict[int, float] = {}
        for size in sizes:
            x = torch.randn(size // 2, device=device).bfloat16()
            found[size] = seconds(library(name, x, ranks), size, device)
        link = fitted(dict(list(found.items())[::2]))
        for number, (size, taken) in enumerate(found.items()):
            predicted_s = link.alpha + link.beta * size
            rows.append(
                {
                    "collective": name,
                    "bytes": size,
                    "us": taken * 1e6,
                    "bus_gb_per_s": bus_bandwidth(name, ranks, size, taken) / 1e9,
                    "predicted_us": predicted_s * 1e6,
                    "is_fitted": number % 2 == 0,
                }
            )
    return rows


def messages(rows: list[dict[str, Any]], ranks: int) -> dict[int, float]:
    """Maps the bytes of each measured all-gather to the seconds of one of its messages."""
    own = [r for r in rows if r["collective"] == "all_gather"]
    return {r["bytes"]: r["us"] / 1e6 / (ranks - 1) for r in own}


def main() -> None:
    parser = argparse.ArgumentParser(description="our strategies against FSDP2, DTensor and CP")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300.0, help="no system starts later")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", help="backend of our ranks; '' runs op by op")
    parser.add_argument("--machine", default="h200", help="the machine of the simulator")
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="NAME", help="run only these systems"
    )
    given = parser.parse_args()
    device = rank.join(LATE)
    race = Race(device, given)
    is_gpu = device.type == "cuda"
    sizes = replace(LLAMA3_8B, layers=given.layers) if is_gpu else SMALL
    long = replace(sizes, batch=1, tokens=LONG if is_gpu else SMALL_LONG)
    backend = ("triton" if is_gpu else "mlir") if given.backend is None else given.backend
    warm = plugins.load("stack.backends", backend).machine.warm if backend else None
    if warm is not None:
        warm({})  # compiler processes start meanwhile
    race.moved = collectives([1 << k for k in range(13, 29 if is_gpu else 20, 3)], device)
    known = machine(given.machine).calibrated(messages(race.moved, race.ranks))

    def made(own: Sizes, attend: Attend = attended) -> Llama:
        torch.manual_seed(0)
        with device:
            return Llama(own, attend).to(torch.bfloat16 if is_gpu else torch.float32)

    def system(own: Sizes, attend: Attend = attended) -> Ours:
        x, y = (t.to(device) for t in data(own, 1)[0])
        hosted = {"hosted": "hand"} if attend is attended_by_hand and is_gpu else {}
        return Ours(partial(made, own, attend), (x, y), known, backend, hosted)

    short, far = system(sizes), system(long)
    wanted: dict[str, tuple[Sizes, Callable[[], Any]]] = {}
    for name, strategy in strategies(race.ranks).items():
        own = (long, far) if name.startswith("CP") else (sizes, short)
        wanted[f"ours {name}"] = own[0], partial(own[1], strategy)
    heads = strategies(race.ranks)["CP heads"]
    by_hand = partial(system(long, attended_by_hand), heads)
    wanted["ours CP heads, attention by hand"] = long, by_hand
    for stages in (2, 4):
        if race.ranks >= stages:
            pipelined = f"ours 1F1B PP{stages} x DP{race.ranks // stages}"
            wanted[pipelined] = sizes, partial(short.pipelined, stages)
    for name, fn, options in (
        ("FSDP2", mesh_torch.fsdp2, {}),
        ("DTensor TP", mesh_torch.tensor_parallel, {}),
        ("DTensor TP + SP", mesh_torch.tensor_parallel, {"sequence": True}),
        ("FSDP2 compiled", mesh_torch.fsdp2, {"compiled": True}),
        ("DTensor TP compiled", mesh_torch.tensor_parallel, {"compiled": True}),
    ):
        call = partial(fn, **options)
        wanted[f"torch {name}"] = sizes, partial(_theirs, call, made, short, sizes)
    context = partial(_theirs, mesh_torch.context_parallel, made, far, long)
    wanted["torch FSDP2 + CP"] = long, context
    if is_gpu:
        step = strategies(race.ranks)["FSDP"]
        wanted["ours FSDP, step by step"] = sizes, partial(short, step, graph=False)
    for name in given.only or wanted:
        race.enter(name, *wanted[name])
    race.write()
    leave()


def _theirs(fn: Callable[..., Call], made: Any, system: Ours, sizes: Sizes) -> Call:
    return fn(made(sizes), system.batch, RATE)


if __name__ == "__main__":
    main()
