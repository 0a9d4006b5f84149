"""Collectives: what a schedule is, what it should cost, and what it costs on the ranks at hand.

    python -m stack.demos.collectives                    a laptop: proved, drawn, priced
    torchrun --nproc-per-node 2 -m stack.demos.collectives OUT     measured beside NCCL, or gloo

The second form writes OUT/collectives.json: for each size our schedules as point-to-point messages
beside the library, and on GPUs our kernels over peer memory and torch's symmetric memory (no
multicast) too; with the alpha-beta fit of one message, what it predicts for each schedule, and the
algorithm that it would choose. `--plot` draws the file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stack.demos import rank
from stack.ops.collectives import Network, algorithms_of, build
from stack.ops.collectives.draw import svg
from stack.ops.collectives.execute import run, simulate
from stack.ops.collectives.network import Link, bus_bandwidth, fitted, table
from stack.ops.collectives.schedule import Schedule

SIZES = tuple(1 << k for k in range(13, 29, 3))  # bytes: 8 KiB to 256 MiB
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


# ---- on ranks


def calls(
    collective: str, size: int, peers: Any, world: int, device: Any
) -> Iterable[tuple[str, str, Callable[[], Any]]]:
    """(kind, algorithm, call) of all that does a collective of `size` bytes of bf16 a rank."""
    import torch

    x = torch.randn(size // 2, device=device).bfloat16()
    yield "library", "nccl" if peers is not None else "gloo", library(collective, x, world)
    if peers is not None:
        yield from _on_peer_memory(collective, x, peers)
    for algorithm in algorithms_of(collective):
        yield "schedule", algorithm, _messages(build(collective, algorithm, world), x)


def library(collective: str, x: Any, world: int) -> Callable[[], Any]:
    """A call of torch's own for an input on each rank."""
    import torch
    import torch.distributed as dist

    if collective == "all_reduce":
        own = x.clone()
        return lambda: dist.all_reduce(own)
    if collective == "reduce_scatter":
        part = x.new_empty(x.numel() // world)
        return lambda: dist.reduce_scatter_tensor(part, x)
    if collective == "all_gather":
        whole = x.new_empty(x.numel() * world)
        return lambda: dist.all_gather_into_tensor(whole, x)
    made = torch.empty_like(x)
    return lambda: dist.all_to_all_single(made, x)


def _on_peer_memory(
    collective: str, x: Any, peers: Any
) -> Iterable[tuple[str, str, Callable[[], Any]]]:
    import torch
    import torch.distributed as dist

    from stack.ops.collectives.peer_memory import predicted

    for way in predicted(collective, peers.world, x.nbytes):
        yield "hand", way, partial(getattr(peers, collective), x, way)
    if collective != "all_reduce":
        return
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    shared, symmetric = peers.torchs_own(x), torch.ops.symm_mem
    yield "peer", "one_shot", lambda: symmetric.one_shot_all_reduce(shared, "sum", name)
    yield "peer", "two_shot", lambda: symmetric.two_shot_all_reduce_(shared, "sum", name)


def _messages(schedule: Schedule, x: Any) -> Callable[[], Any]:
    return lambda: run(schedule, x, agrees=False)


def seconds(call: Callable[[], Any], size: int, captured: bool, device: Any) -> tuple[float, float]:
    """The median time of a call on the slowest rank, and its spread; from a graph's replays."""
    import torch

    is_gpu = device.type == "cuda"
    count = 20 if size < 1 << 24 else 4
    if not is_gpu:
        count = max(1, min(count, (1 << 22) // size))
    for _ in range(3 if size < 1 << 24 else 1):
        call()
    rank.wait(device)
    replay, calls_in_it = call, 1
    if captured and is_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        replay, calls_in_it, count = graph.replay, count, 1
    times = [rank.elapsed(replay, count, device) / calls_in_it for _ in range(7)]
    times = rank.slowest(times, device)
    middle = statistics.median(times)
    return middle, (times[-2] - times[1]) / middle


def measure(out: Path, sizes: Sequence[int] = SIZES) -> None:
    """All collectives by all means, on the ranks of one host; rank 0 writes the table."""
    import torch
    import torch.distributed as dist

    device = rank.join()
    world, is_first = dist.get_world_size(), dist.get_rank() == 0
    peers = _with_torchs_own(max(sizes)) if device.type == "cuda" else None
    rows: list[dict[str, Any]] = []
    for collective in MEASURED:
        for size in sizes:
            for kind, algorithm, call in calls(collective, size, peers, world, device):
                row = {"collective": collective, "kind": kind, "algorithm": algorithm}
                try:
                    taken, spread = seconds(call, size, kind != "schedule", device)
                except (RuntimeError, TypeError) as error:  # a peer that refuses
                    rows.append({**row, "bytes": size, "note": str(error).split("\n")[0]})
                    continue
                bus = bus_bandwidth(collective, world, size, taken) / 1e9
                told = {"bytes": size, "us": taken * 1e6, "spread": spread, "bus_gb_per_s": bus}
                rows.append({**row, **told})
            if is_first:
                print(_line(rows, collective, size), flush=True)
    link = fitted(dict(_shifts(sizes, world, device)))
    _predict(rows, Network(link), world)
    if is_first:
        print(f"one message: {link.alpha * 1e6:.1f} us + bytes / {1e-9 / link.beta:.3g} GB/s")
        print(_errors(rows))
        made = {
            "schema": "stack.collectives/1",
            "device": f"{world} x {rank.name_of(device)}",
            "versions": {"torch": torch.__version__, **_nccl(device)},
            "fit": {"alpha_us": link.alpha * 1e6, "gb_per_s": 1e-9 / link.beta},
            "choices": _choices(rows, Network(link), world),
            "rows": rows,
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / "collectives.json").write_text(json.dumps(made, indent=1))
    dist.destroy_process_group()


def _nccl(device: Any) -> dict[str, str]:
    if device.type != "cuda":
        return {}
    return {"nccl": ".".join(map(str, importlib.import_module("torch.cuda.nccl").version()))}


def _predict(rows: list[dict[str, Any]], network: Network, world: int) -> None:
    """What one message's alpha and beta say about each schedule, beside what it took."""
    for row in rows:
        if row["kind"] == "schedule":
            schedule = build(row["collective"], row["algorithm"], world)
            row["predicted_us"] = network.seconds(schedule, row["bytes"]) * 1e6


def _errors(rows: list[dict[str, Any]]) -> str:
    """How far predicted times of schedules are from measured ones, by collective."""
    lines = ["predicted against measured, from the fit of one message:"]
    for collective in MEASURED:
        own = [r for r in rows if r["collective"] == collective and "predicted_us" in r]
        errors = sorted(abs(r["predicted_us"] / r["us"] - 1) for r in own if "us" in r)
        if errors:
            told = f"median error {statistics.median(errors):.0%}, largest {errors[-1]:.0%}"
            lines.append(f"  {collective:<14} {told} of {len(errors)}")
    return "\n".join(lines)


def _with_torchs_own(size: int) -> Any:
    """Our peer memory, with a tensor of torch's symmetric memory beside it."""
    import torch
    import torch.distributed as dist

    from stack.ops.collectives.peer_memory import PeerMemory

    class Both(PeerMemory):
        def torchs_own(self, x: torch.Tensor) -> torch.Tensor:
            made = theirs[: x.numel()]
            made.copy_(x)
            return made

    memory: Any = importlib.import_module("torch.distributed._symmetric_memory")
    theirs = memory.empty(size // 2, dtype=torch.bfloat16, device="cuda")
    memory.rendezvous(theirs, group=dist.group.WORLD)
    return Both(size)


def _shifts(sizes: Iterable[int], world: int, device: Any) -> Iterable[tuple[int, float]]:
    """The time of one message from every rank to the next, by bytes."""
    import torch

    schedule = build("permute", "shift", world)
    for size in sizes:
        x = torch.zeros(size // 2, device=device, dtype=torch.bfloat16)
        yield size, seconds(_messages(schedule, x), size, False, device)[0]


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
            (line,) = axis.loglog(sizes, bus, style, label=f"{kind}: {algorithm}")
            if all("predicted_us" in r for r in own):
                fit = [r["bus_gb_per_s"] * r["us"] / r["predicted_us"] for r in own]
                axis.loglog(sizes, fit, color=line.get_color(), linewidth=0.5)
        axis.set_title(f"{collective}, {made['device']}")
        axis.set_ylabel("bus bandwidth, GB/s")
        axis.set_xlabel("bytes of a rank's input")
        axis.legend(fontsize=7)
    fit = made["fit"]
    figure.suptitle(
        f"one message: {fit['alpha_us']:.1f} us + bytes / {fit['gb_per_s']:.3g} GB/s"
        " (thin lines: what it predicts)"
    )
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=110)
    print(f"wrote {path.with_suffix('.png')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, nargs="?", help="folder for pictures or results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a measured table")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="bytes of the largest input")
    parser.add_argument("--ranks", type=int, default=4, help="of the story (default: 4)")
    args = parser.parse_args()
    if args.plot is not None:
        plot(args.plot)
    elif "RANK" in os.environ:
        measure(args.out or Path(), [size for size in SIZES if size <= args.most])
    else:
        story(args.out, args.ranks)


if __name__ == "__main__":
    main()
