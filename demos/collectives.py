"""Collectives: what a schedule is, what it should cost, and what it costs on the GPUs at hand.

    python -m stack.demos.collectives                    a laptop: proved, drawn, priced
    torchrun --nproc-per-node 2 -m stack.demos.collectives OUT     GPUs: measured beside NCCL

The second form writes OUT/collectives.json: for each size, our kernels over peer memory, our
schedules as point-to-point messages, NCCL, and torch's symmetric memory (no multicast), with the
alpha-beta fit and the algorithm that it would choose; `--plot` draws the file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stack.ops.collectives import Network, algorithms_of, build
from stack.ops.collectives.draw import svg
from stack.ops.collectives.execute import run, simulate
from stack.ops.collectives.network import Link, bus_bandwidth, fitted, table
from stack.ops.collectives.schedule import Schedule

SIZES = tuple(1 << k for k in range(13, 31, 2))  # bytes: 8 KiB to 512 MiB
MEASURED = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
LAPTOP = Network(Link(3e-6, 1 / 400e9))  # about what one host's GPUs have


def story(out: Path | None = None, ranks: int = 4) -> None:
    """One collective from its schedule to its cost, on one CPU."""
    schedule = build("all_reduce", "two_shot", ranks)
    print(schedule)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(1000) for _ in range(ranks)]
    error = max(np.abs(r - sum(inputs)).max() for r in simulate(schedule, inputs))
    print(f"\ncomputed by {ranks} simulated ranks: largest error {error:.1e}")
    print("\nmicroseconds that algorithms should take on 8 ranks (3 us, 400 GB/s; * fastest):")
    print(table(LAPTOP, "all_reduce", 8, SIZES[::2]))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in algorithms_of("all_reduce"):
            path = out / f"all_reduce-{name}.svg"
            path.write_text(svg(build("all_reduce", name, ranks)))
            print(f"wrote {path}")


# ---- on GPUs


def calls(
    collective: str, size: int, peers: Any, world: int
) -> Iterable[tuple[str, str, Callable[[], Any]]]:
    """(kind, algorithm, call) of all that does a collective of `size` bytes of bf16 a rank."""
    import torch
    import torch.distributed as dist

    x = torch.randn(size // 2, device="cuda").bfloat16()
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    if collective == "all_reduce":
        own = x.clone()
        yield "library", "nccl", lambda: dist.all_reduce(own)
        yield "hand", "one_shot", lambda: peers.one_shot_all_reduce(x)
        yield "hand", "two_shot", lambda: peers.two_shot_all_reduce(x)
        shared = peers.torchs_own(x)
        symmetric = torch.ops.symm_mem
        yield "peer", "one_shot", lambda: symmetric.one_shot_all_reduce(shared, "sum", name)
        yield "peer", "two_shot", lambda: symmetric.two_shot_all_reduce_(shared, "sum", name)
    elif collective == "reduce_scatter":
        part = torch.empty(size // 2 // world, device="cuda", dtype=x.dtype)
        yield "library", "nccl", lambda: dist.reduce_scatter_tensor(part, x)
        yield "hand", "direct", lambda: peers.reduce_scatter(x)
    elif collective == "all_gather":
        whole = torch.empty(size // 2 * world, device="cuda", dtype=x.dtype)
        yield "library", "nccl", lambda: dist.all_gather_into_tensor(whole, x)
        yield "hand", "direct", lambda: peers.all_gather(x)
    else:
        made = torch.empty_like(x)
        yield "library", "nccl", lambda: dist.all_to_all_single(made, x)
        yield "hand", "direct", lambda: peers.all_to_all(x)
    for algorithm in algorithms_of(collective):
        schedule = build(collective, algorithm, world)
        yield "schedule", algorithm, _messages(schedule, x)


def _messages(schedule: Schedule, x: Any) -> Callable[[], Any]:
    return lambda: run(schedule, x, agrees=False)


def seconds(call: Callable[[], Any], size: int, captured: bool) -> tuple[float, float]:
    """The median time of a call on the slowest rank, and its spread; from a graph's replays."""
    import torch
    import torch.distributed as dist

    count = 20 if size < 1 << 24 else 4
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph: Any = None
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
    times: list[float] = []
    for _ in range(7):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if graph is not None:
            graph.replay()
        else:
            for _ in range(count):
                call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count / 1e3)
    slowest = torch.tensor(times, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    times = sorted(slowest.tolist())
    middle = statistics.median(times)
    return middle, (times[-2] - times[1]) / middle


def measure(out: Path, sizes: Iterable[int] = SIZES) -> None:
    """All collectives by all means, on the GPUs of one host; rank 0 writes the table."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    world = dist.get_world_size()
    peers = _with_torchs_own(max(sizes))
    rows: list[dict[str, Any]] = []
    for collective in MEASURED:
        for size in sizes:
            for kind, algorithm, call in calls(collective, size, peers, world):
                row = {"collective": collective, "kind": kind, "algorithm": algorithm}
                try:
                    taken, spread = seconds(call, size, captured=kind != "schedule")
                except (RuntimeError, TypeError) as error:  # a peer that refuses
                    rows.append({**row, "bytes": size, "note": str(error).split("\n")[0]})
                    continue
                bus = bus_bandwidth(collective, world, size, taken) / 1e9
                told = {"bytes": size, "us": taken * 1e6, "spread": spread, "bus_gb_per_s": bus}
                rows.append({**row, **told})
            if rank == 0:
                print(_line(rows, collective, size), flush=True)
    link = fitted(dict(_shifts(sizes, world)))
    if rank == 0:
        nccl = ".".join(map(str, importlib.import_module("torch.cuda.nccl").version()))
        made = {
            "schema": "stack.collectives/1",
            "device": f"{world} x {torch.cuda.get_device_name()}",
            "versions": {"torch": torch.__version__, "nccl": nccl},
            "fit": {"alpha_us": link.alpha * 1e6, "gb_per_s": 1e-9 / link.beta},
            "choices": _choices(rows, Network(link), world),
            "rows": rows,
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / "collectives.json").write_text(json.dumps(made, indent=1))
    dist.destroy_process_group()


def _with_torchs_own(size: int) -> Any:
    """Our peer memory, with a tensor of torch's symmetric memory beside it."""
    import torch
    import torch.distributed as dist

    from stack.ops.collectives.peer_triton import PeerMemory

    class Both(PeerMemory):
        def torchs_own(self, x: torch.Tensor) -> torch.Tensor:
            made = theirs[: x.numel()]
            made.copy_(x)
            return made

    memory: Any = importlib.import_module("torch.distributed._symmetric_memory")
    theirs = memory.empty(size // 2, dtype=torch.bfloat16, device="cuda")
    memory.rendezvous(theirs, group=dist.group.WORLD)
    return Both(size)


def _shifts(sizes: Iterable[int], world: int) -> Iterable[tuple[int, float]]:
    """The time of one message from every rank to the next, by bytes."""
    import torch

    schedule = build("permute", "shift", world)
    for size in sizes:
        x = torch.zeros(size // 2, device="cuda", dtype=torch.bfloat16)
        yield size, seconds(_messages(schedule, x), size, captured=False)[0]


def _choices(rows: list[dict[str, Any]], network: Network, world: int) -> list[dict[str, Any]]:
    """For each size, the schedule that the model picks, and the one that was fastest."""
    found: list[dict[str, Any]] = []
    for collective in MEASURED:
        own = [
            r
            for r in rows
            if r["collective"] == collective and r["kind"] == "schedule" and "us" in r
        ]
        for size in sorted({r["bytes"] for r in own}):
            here = {r["algorithm"]: r["us"] for r in own if r["bytes"] == size}
            predicted = network.predicted(collective, world, size)
            picked, best = (
                min(predicted, key=predicted.__getitem__),
                min(here, key=here.__getitem__),
            )
            found.append(
                {
                    "collective": collective,
                    "bytes": size,
                    "picked": picked,
                    "predicted_us": predicted[picked] * 1e6,
                    "measured_us": here.get(picked),
                    "best": best,
                    "best_us": here[best],
                }
            )
    return found


def _line(rows: list[dict[str, Any]], collective: str, size: int) -> str:
    here = [r for r in rows if r["collective"] == collective and r["bytes"] == size]
    cells = [f"{r['kind']} {r['algorithm']} {r['us']:.1f}" for r in here if "us" in r]
    return f"{collective} {size}: {'; '.join(cells)} (us)"


def plot(path: Path) -> None:
    """Bus bandwidth by size, a picture for each collective, beside the file."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    made = json.loads(path.read_text())
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), sharex=True)
    for collective, axis in zip(MEASURED, axes.ravel(), strict=True):
        rows = [r for r in made["rows"] if r["collective"] == collective and "us" in r]
        for kind, algorithm in dict.fromkeys((r["kind"], r["algorithm"]) for r in rows):
            own = [r for r in rows if (r["kind"], r["algorithm"]) == (kind, algorithm)]
            style = {"hand": "-o", "library": "-k", "peer": "--s", "schedule": ":"}[kind]
            sizes, bus = [r["bytes"] for r in own], [r["bus_gb_per_s"] for r in own]
            axis.loglog(sizes, bus, style, label=f"{kind}: {algorithm}")
        axis.set_title(f"{collective}, {made['device']}")
        axis.set_ylabel("bus bandwidth, GB/s")
        axis.set_xlabel("bytes of a rank's input")
        axis.legend(fontsize=7)
    fit = made["fit"]
    figure.suptitle(f"one message: {fit['alpha_us']:.1f} us + bytes / {fit['gb_per_s']:.0f} GB/s")
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=110)
    print(f"wrote {path.with_suffix('.png')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, nargs="?", help="folder for pictures or results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a measured table")
    parser.add_argument("--ranks", type=int, default=4, help="of the story (default: 4)")
    args = parser.parse_args()
    if args.plot is not None:
        plot(args.plot)
    elif "RANK" in os.environ:
        measure(args.out or Path())
    else:
        story(args.out, args.ranks)


if __name__ == "__main__":
    main()
