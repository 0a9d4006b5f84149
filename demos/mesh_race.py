"""A Llama on the GPUs of one host: our strategies beside torch's FSDP2 and DTensor.

    torchrun --nproc-per-node 2 -m stack.demos.mesh_race [OUT] [--seconds 100]

All systems train the same model on the same tokens in one run, as plain SGD in bf16; of each a
trace says how long the GPU computes, how long it communicates and does nothing else, and how long
it waits for the host. Ours runs once more as one CUDA graph, whose memory is not in the peak. At
first the collectives alone: bus bandwidth by size, and how well the alpha-beta model predicts them.
Without GPUs all of it runs on gloo processes, on a model of a few hundred words.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stack.demos import rank
from stack.demos.collectives import library
from stack.demos.llama import Llama, Sizes, data
from stack.demos.train_mesh import TIDY, Planned, planned, strategies
from stack.frontends.torch_steps import RankProgram, rank_program
from stack.ir.node import Func
from stack.ir.sharding import replicated
from stack.ops.collectives.network import bus_bandwidth, fitted
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.mesh import cuts_of
from stack.run.step import Optimizer

RATE = 1e-2
SIZES = Sizes(layers=4, width=4096, hidden=8192, heads=32, words=8192, tokens=2048, batch=2)
SMALL = Sizes(layers=2, width=128, hidden=256, heads=4, words=256, tokens=32, batch=4)
TORCHS = {"DP": "DDP", "TP": "DTensor TP", "FSDP": "FSDP2"}
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


class Race:
    """The ranks of one host, and the model that they share."""

    def __init__(self, device: torch.device, seconds: float, out: Path | None = None) -> None:
        self.device, self.end, self.out = device, time.monotonic() + seconds, out
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sizes = sizes = SIZES if device.type == "cuda" else SMALL
        self.backend = "triton" if device.type == "cuda" else "mlir"
        self.batch = tuple(t.to(self.device) for t in data(sizes, 1)[0])
        self.rows: list[dict[str, Any]] = []
        self.moved: list[dict[str, Any]] = []
        self.programs: dict[str, tuple[Planned, RankProgram]] = {}

    def write(self) -> None:
        """What is known so far, in the folder that was given."""
        if self.out is not None:
            made = {"systems": self.rows, "collectives": self.moved}
            (self.out / "mesh_race.json").write_text(json.dumps(made, indent=1))

    def model(self) -> Llama:
        """The model, the same on all ranks and for all systems."""
        torch.manual_seed(0)
        with self.device:
            return Llama(self.sizes).bfloat16()

    @cached_property
    def step(self) -> Func:
        """The training step of whole values."""
        func = Pipeline(TIDY).run(gradients_of(self.model(), self.batch)).func
        return Optimizer("sgd", ("*.weight",), rate=RATE).step(func)

    @property
    def is_late(self) -> bool:
        """Whether the time is over, on the slowest rank."""
        return bool(rank.slowest([time.monotonic() > self.end], self.device)[0])

    def enter(self, name: str, make: Callable[[], Callable[[], Tensor]]) -> None:
        """Measure one system; what it refuses is told."""
        if self.is_late:
            self.rows.append({"system": name, "note": "no time left"})
            return
        start = time.perf_counter()
        try:
            step = make()
            first = float(step())
            row = {
                "first_s": time.perf_counter() - start,
                "first_loss": first,
                **timed(step, self.device),
                **shares(step, self.device),
                "last_loss": float(step()),
            }
            del step
        except Exception as error:
            if self.rank == 0:
                traceback.print_exc()
            row = {"note": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"}
        self.rows.append({"system": name, **row})
        if self.rank == 0:
            print(line(self.rows[-1]), flush=True)
            self.write()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- ours

    def ours(self, name: str, as_graph: bool = False) -> Callable[[], Tensor]:
        """A strategy of ours, its segments compiled."""
        plan, program = self._program(name)
        model = self.model()
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        held |= dict(zip("xy", self.batch))
        values: list[Tensor] = []
        for p in plan.placed.params:
            sharding = p.tensor.sharding or replicated(plan.placed.meshes[0], p.tensor.rank)
            whole = held[str(p.attrs["name"])].detach()
            values.append(whole[cuts_of(whole.shape, sharding, self.rank)].clone())

        def step() -> Tensor:
            results = program(*values)
            for result, i in plan.carried.items():
                if as_graph:  # it reads where it read before
                    values[i].copy_(results[result])
                else:
                    values[i] = results[result]
            return results[0]

        return captured(step) if as_graph else step

    def _program(self, name: str) -> tuple[Planned, RankProgram]:
        """A strategy of ours by name, planned and compiled once."""
        if name not in self.programs:
            known = strategies(self.ranks, self.ranks)
            plan = planned(self.step, known[name.replace("TP", f"DP1 x TP{self.ranks}")])
            mesh = plan.placed.meshes[0]
            program = rank_program(mesh, plan.local, str(self.device), backend=self.backend)
            self.programs[name] = plan, program
        return self.programs[name]

    # ---- torch's

    def fsdp2(self, compiled: bool = False) -> Callable[[], Tensor]:
        """`fully_shard` on every layer, on half of the batch."""
        from torch.distributed.fsdp import fully_shard

        model = self.model()
        for layer in model.layers:
            if compiled:
                layer.compile()
            fully_shard(layer)
        fully_shard(model)
        x, y = (t.chunk(self.ranks)[self.rank] for t in self.batch)
        return self._eager(model, x, y)

    def tensor_parallel(self, compiled: bool = False) -> Callable[[], Tensor]:
        """DTensor's column and row styles."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        model = self.model()
        mesh = init_device_mesh(self.device.type, (self.ranks,))
        columns = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "gate", "up")}
        rows = {name: RowwiseParallel() for name in ("wo", "down")}
        for layer in model.layers:
            parallelize_module(layer, mesh, {**columns, **rows})
            if compiled:
                layer.compile()
        return self._eager(model, *self.batch)

    def ddp(self) -> Callable[[], Tensor]:
        """`DistributedDataParallel`."""
        model = nn.parallel.DistributedDataParallel(self.model(), gradient_as_bucket_view=True)
        x, y = (t.chunk(self.ranks)[self.rank] for t in self.batch)
        return self._eager(model, x, y)

    def _eager(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        kinds: dict[type, list[Tensor]] = {}  # what lies on a mesh has an update of its own
        for weight in model.parameters():
            kinds.setdefault(type(weight.data), []).append(weight)
        optimizer = torch.optim.SGD([{"params": own} for own in kinds.values()], lr=RATE)

        def step() -> Tensor:
            loss = model(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step


def timed(call: Callable[[], Any], device: torch.device, rounds: int = 7) -> dict[str, float]:
    """Median milliseconds of a call on the slowest rank, its spread, and the most memory."""
    for _ in range(2):
        call()
    rank.wait(device)
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    found = rank.slowest([rank.elapsed(call, 1, device) for _ in range(rounds)], device)
    middle = statistics.median(found)
    peak = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0
    return {"ms": middle * 1e3, "spread": (found[-2] - found[1]) / middle, "peak_gib": peak}


def captured(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step as one CUDA graph, its collectives too; it writes to what it reads."""
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def shares(call: Callable[[], Any], device: torch.device, rounds: int = 3) -> dict[str, Any]:
    """Milliseconds of a call on this GPU: computing, communicating and nothing else, idle."""
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
        "longest_ms": dict(longest.most_common(30)),
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of what spans cover together."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    if "ms" not in row:
        return f"{row['system']:<28} {row.get('note', '')}"
    parts = "".join(
        f"  {name} {row[f'{name}_ms']:.1f}"
        for name in ("compute", "exposed", "idle")
        if f"{name}_ms" in row
    )
    return (
        f"{row['system']:<28} {row['ms']:8.2f} ms  spread {row['spread']:.1%}"
        f"{parts}  {row['peak_gib']:6.2f} GiB  loss {row['first_loss']:.4f}"
        f" to {row['last_loss']:.4f}"
        f"  first {row['first_s']:.1f} s"
    )


# ---- collectives


def seconds(call: Callable[[], Any], size: int, device: torch.device) -> float:
    """Of a call on the slowest rank: the median of 5 rounds."""
    for _ in range(3):
        call()
    count = 50 if size < 1 << 22 else 8
    if device.type != "cuda":
        count = max(2, min(count, (1 << 22) // size))
    found = [rank.elapsed(call, count, device) for _ in range(5)]
    return statistics.median(rank.slowest(found, device))


def collectives(sizes: Iterable[int], device: torch.device) -> list[dict[str, Any]]:
    """Bus bandwidth by size; every second size is predicted from a fit to the others."""
    ranks = dist.get_world_size()
    rows: list[dict[str, Any]] = []
    for name in COLLECTIVES:
        found: dict[int, float] = {}
        for size in sizes:
            x = torch.randn(size // 2, device=device).bfloat16()
            found[size] = seconds(library(name, x, ranks), size, device)
        link = fitted(dict(list(found.items())[::2]))
        for number, (size, taken) in enumerate(found.items()):
            predicted = link.alpha + link.beta * size
            rows.append(
                {
                    "collective": name,
                    "bytes": size,
                    "us": taken * 1e6,
                    "bus_gb_per_s": bus_bandwidth(name, ranks, size, taken) / 1e9,
                    "predicted_us": predicted * 1e6,
                    "is_fitted": number % 2 == 0,
                }
            )
    return rows


def collective_table(rows: list[dict[str, Any]]) -> str:
    """Bus bandwidth by size, and the error of what was predicted and not fitted to."""
    sizes = sorted({r["bytes"] for r in rows})
    lines = ["bus GB/s      " + "".join(f"{size // 1024:>9}K" for size in sizes)]
    for name in COLLECTIVES:
        own = [r for r in rows if r["collective"] == name]
        told = [r for r in own if not r["is_fitted"]]
        errors = [abs(r["predicted_us"] / r["us"] - 1) for r in told]
        cells = "".join(f"{r['bus_gb_per_s']:>10.1f}" for r in own)
        lines.append(f"{name:<14}{cells}  predicted within {max(errors):.0%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="our strategies beside FSDP2 and DTensor")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=95.0)
    args = parser.parse_args()
    device = rank.join()
    race = Race(device, args.seconds, args.out)
    top = 29 if device.type == "cuda" else 23
    race.moved = collectives([1 << k for k in range(13, top, 3)], device)
    for name, theirs in (("DP", race.ddp), ("TP", race.tensor_parallel), ("FSDP", race.fsdp2)):
        race.enter(f"ours {name}", partial(race.ours, name))
        if device.type == "cuda":
            race.enter(f"ours {name}, one graph", partial(race.ours, name, as_graph=True))
        race.enter(f"torch {TORCHS[name]}", theirs)
    race.enter("ours TP + SP", partial(race.ours, "TP + SP"))
    if device.type == "cuda":
        race.enter("ours TP + SP, one graph", partial(race.ours, "TP + SP", as_graph=True))
    for name, theirs in (("TP", race.tensor_parallel), ("FSDP", race.fsdp2)):
        race.enter(f"torch {TORCHS[name]} compiled", partial(theirs, compiled=True))
    if race.rank == 0:
        print(collective_table(race.moved))
        print(f"{race.ranks} x {rank.name_of(device)}, torch {torch.__version__}, {race.sizes}")
        print("\n".join(map(line, race.rows)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
