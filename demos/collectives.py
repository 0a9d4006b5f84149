"""Collectives: schedules, their predicted cost, and their measured cost on the available ranks.

    python -m stack.demos.collectives                    a laptop: checked, drawn, predicted
    torchrun --nproc-per-node 2 -m stack.demos.collectives OUT     measured against NCCL, or gloo

The second form writes OUT/collectives.json, .md and .png. For each size it measures our schedules
as point-to-point messages and the library; on GPUs also our kernels over peer memory and torch's
symmetric memory (no multicast). All systems alternate. The output has the alpha-beta fits, their
predictions, the algorithm they choose at each size, and the best one. `--table` only rebuilds the
table and the plot.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stack.demos import rank
from stack.frameworks.torch_private import symmetric_memory
from stack.ops.collectives import Network, algorithms_of, build
from stack.ops.collectives.draw import svg
from stack.ops.collectives.execute import run, simulate
from stack.ops.collectives.network import Link, bus_bandwidth, fitted, table
from stack.ops.collectives.schedule import Schedule

SIZES = tuple(1 << k for k in range(13, 31))  # bytes: 8 KiB to 1 GiB
SPARSE = 3  # schedules as messages are measured at every third size
MEASURED = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
LAPTOP = Network(Link(3e-6, 1 / 400e9))  # similar to the GPUs of one host
Call = Callable[[], Any]
Row = dict[str, Any]


def story(out: Path | None = None, ranks: int = 4) -> None:
    """Prints one collective on simulated ranks, from its schedule to its predicted cost."""
    schedule = build("all_reduce", "two_shot", ranks)
    print(schedule)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(1000) for _ in range(ranks)]
    error = max(np.abs(r - sum(inputs)).max() for r in simulate(schedule, inputs))
    print(f"\ncomputed by {ranks} simulated ranks: largest error {error:.1e}")
    print("\nmicroseconds that algorithms should take on 8 ranks (3 us, 400 GB/s; * fastest):")
    print(table(LAPTOP, "all_reduce", 8, SIZES[::6]))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in algorithms_of("all_reduce"):
            path = out / f"all_reduce-{name}.svg"
            path.write_text(svg(build("all_reduce", name, ranks)))
            print(f"wrote {path}")


# ---- on ranks


def library(collective: str, x: Any, world: int) -> Call:
    """Returns a call of torch's own collective, with `x` as the input of this rank."""
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


class Host:
    """The ranks of one host, and memory that their GPUs share."""

    def __init__(self, size: int) -> None:
        import torch
        import torch.distributed as dist

        self.device = rank.join()
        self.world, self.is_first = dist.get_world_size(), dist.get_rank() == 0
        if self.device.type != "cuda":
            return
        from stack.ops.collectives.peer_memory import PeerMemory

        memory = symmetric_memory()
        self.peers = PeerMemory(size)
        self.theirs = memory.empty(size // 2, dtype=torch.bfloat16, device=self.device)
        memory.rendezvous(self.theirs, group=dist.group.WORLD)

    def calls(self, collective: str, size: int) -> Iterable[tuple[str, str, Call]]:
        """Yields (kind, algorithm, call) of each implementation; `size`: bytes of bf16 per rank."""
        import torch

        x = torch.randn(size // 2, device=self.device).bfloat16()
        is_gpu = self.device.type == "cuda"
        yield "library", "nccl" if is_gpu else "gloo", library(collective, x, self.world)
        if is_gpu:
            yield from self._on_peer_memory(collective, x)

    def schedules(self, collective: str, size: int) -> Iterable[tuple[str, str, Call]]:
        """Yields (kind, algorithm, call) of each schedule, run as point-to-point messages."""
        import torch

        x = torch.randn(size // 2, device=self.device).bfloat16()
        for algorithm in algorithms_of(collective):
            yield "schedule", algorithm, messages(build(collective, algorithm, self.world), x)

    def _on_peer_memory(self, collective: str, x: Any) -> Iterable[tuple[str, str, Call]]:
        import torch
        import torch.distributed as dist

        from stack.ops.collectives.peer_memory import predicted

        for way in sorted(predicted(collective, self.world, x.nbytes)):
            yield "hand", way, partial(getattr(self.peers, collective), x, way)
        if collective != "all_reduce":
            return
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        shared, symmetric = self.theirs[: x.numel()], torch.ops.symm_mem
        shared.copy_(x)
        yield "peer", "one_shot", lambda: symmetric.one_shot_all_reduce(shared, "sum", name)
        yield "peer", "two_shot", lambda: symmetric.two_shot_all_reduce_(shared, "sum", name)

    def rows(self, collective: str, size: int, calls: Any) -> list[Row]:
        """Measures all `calls` alternately."""
        found = list(calls(collective, size))
        times = rank.race([call for _, _, call in found], size, self.device)
        rows: list[Row] = []
        for (kind, algorithm, _), time in zip(found, times, strict=True):
            row = {"collective": collective, "kind": kind, "algorithm": algorithm, "bytes": size}
            if isinstance(time, str):
                rows.append({**row, "note": time})
                continue
            bus = bus_bandwidth(collective, self.world, size, time[0]) / 1e9
            rows.append({**row, "us": time[0] * 1e6, "spread": time[1], "bus_gb_per_s": bus})
        return rows

    def message(self, sizes: Iterable[int]) -> Link:
        """Measures messages between neighbouring ranks by size; fits latency and bandwidth."""
        import torch

        schedule = build("permute", "shift", self.world)
        times: dict[int, float] = {}
        for size in sizes:
            x = torch.zeros(size // 2, device=self.device, dtype=torch.bfloat16)
            time = rank.race([messages(schedule, x)], size, self.device)[0]
            if not isinstance(time, str):
                times[size] = time[0]
        return fitted(times)


def messages(schedule: Schedule, x: Any) -> Call:
    """Returns a call that runs a schedule as point-to-point messages of torch.distributed."""
    return lambda: run(schedule, x, agrees=False)


def measure(out: Path, sizes: Sequence[int] = SIZES) -> None:
    """Measures all collectives and implementations on one host; rank 0 writes the results."""
    import torch.distributed as dist

    host = Host(max(sizes))
    rows: list[Row] = []

    def measured(calls: Any, sizes: Sequence[int], link: Link | None = None) -> None:
        for size in sizes:
            for collective in MEASURED:
                rows.extend(host.rows(collective, size, calls))
                if host.is_first:
                    print(_line(rows, collective, size), flush=True)
        if host.is_first:
            _write(out, host, rows, link)

    measured(host.calls, sizes)
    measured(host.schedules, sizes[::SPARSE], host.message(sizes))
    dist.destroy_process_group()


def _write(out: Path, host: Host, rows: list[Row], link: Link | None) -> None:
    from stack.demos.collectives_table import judged, markdown, plot

    made = {
        "schema": "stack.collectives/2",
        **rank.head(host.device, "collectives"),
        "ranks": host.world,
        **judged(rows, link, host.world),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "collectives.json").write_text(json.dumps(made, indent=1))
    (out / "collectives.md").write_text(markdown(made))
    plot(made, out / "collectives.png")


def _line(rows: list[Row], collective: str, size: int) -> str:
    here = [r for r in rows if r["collective"] == collective and r["bytes"] == size]
    cells = [f"{r['kind']} {r['algorithm']} {r['us']:.1f}" for r in here if "us" in r]
    return f"{collective} {size}: {'; '.join(cells)} (us)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, nargs="?", help="folder for pictures or results")
    parser.add_argument("--table", type=Path, metavar="FILE", help="of what was measured")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="bytes of the largest input")
    parser.add_argument("--ranks", type=int, default=4, help="of the story (default: 4)")
    args = parser.parse_args()
    if args.table is not None:
        from stack.demos.collectives_table import markdown, plot

        made = json.loads(args.table.read_text())
        args.table.with_suffix(".md").write_text(markdown(made))
        plot(made, args.table.with_suffix(".png"))
    elif "RANK" in os.environ:
        measure(args.out or Path(), [size for size in SIZES if size <= args.most])
    else:
        story(args.out, args.ranks)


if __name__ == "__main__":
    main()
