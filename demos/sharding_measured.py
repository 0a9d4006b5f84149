"""Cost of strategies, simulated and measured: memory of ZeRO by stage, bubbles of pipelines.

    python -m stack.demos.sharding_measured [OUT]

Everything runs on gloo processes of this machine. Memory is that of values between steps of a
rank's program. A bubble is the share of a step in which ranks do not compute, without the update.
Stages compute and send as in training, but each part takes at least `PACE`, as if it had its own
device; so two cores suffice. The fastest step counts, since other load only slows steps down.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from stack.demos import train_pipeline
from stack.demos.llama import Llama, Sizes, data
from stack.demos.train_mesh import (
    arrays_of,
    inputs_of,
    model_of,
    planned,
    split,
    step_of,
    strategies,
    train,
)
from stack.explore.table import table
from stack.mesh.meshes import parse_mesh
from stack.run.ranks import Ranks
from stack.sim import machine, simulate
from stack.sim.pipeline import KINDS, formula, pipeline
from stack.sim.trace import perfetto, pipeline_timeline, timeline

BUCKET = 1 << 14
PACE = 0.04  # seconds
STAGES = ("DP", "ZeRO-1", "ZeRO-2", "FSDP")
Row = list[str]


def story(out: Path | None = None, ranks: int = 4, machine_name: str = "h100") -> list[Row]:
    """Returns the table; writes drawings and a trace to a folder, if one is given."""
    sizes = Sizes(layers=2)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        with Ranks(ranks, ["torch"]) as pool:
            rows = _memory(pool, sizes, str(Path(folder, "zero")), out, machine_name)
        with Ranks(2, ["torch"]) as pool:
            rows += _bubbles(pool, str(Path(folder, "pipeline")), out)
    print(f"\nsimulated, and measured on {ranks} and on 2 gloo processes:\n")
    print(table(["strategy", "what", "simulated", "measured", "formula"], rows))
    return rows


def _memory(
    pool: Ranks, sizes: Sizes, store: str, out: Path | None, machine_name: str
) -> list[Row]:
    """Returns table rows by stage of ZeRO: a rank's peak bytes, and bytes kept between steps."""
    model, batches = model_of(sizes), data(sizes, 2)
    step = step_of(model, batches[0])
    arrays, rows = arrays_of(step, model, batches[0]), list[Row]()
    device, ranks = machine(machine_name), len(pool.pipes)
    count = sum(p.numel() for p in model.parameters())
    for name in STAGES:
        plan = planned(step, strategies(ranks, ranks)[name])
        found = simulate(plan.local, parse_mesh(plan.mesh), device, bucket=BUCKET)
        each = zip(split(plan, arrays), inputs_of(plan, batches), strict=True)
        measured = pool.run_each(train, [(store, plan.sent(), *own) for own in each])
        peak = max(peak for _, peak in measured)
        rows.append([name, "peak, KiB", _kib(found.peak), _kib(peak), ""])
        # f32 weights and two moments; the stage determines which of them are split
        state = 4 * count * {"DP": 3, "FSDP": 3 / ranks}.get(name, 1 + 2 / ranks)
        kept = sum(int(str(p.tensor.bytes)) for p in plan.local.params if _is_state(p.attrs))
        rows.append([name, "weights and state, KiB", _kib(kept), "", _kib(state)])
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            stem = name.lower().replace("-", "")
            (out / f"{stem}.svg").write_text(timeline(found))
            (out / f"{stem}.trace.json").write_text(perfetto(found))
    return rows


def _is_state(attrs: object) -> bool:
    return ".weight" in str(dict(attrs)["name"])  # pyright: ignore[reportCallIssue, reportArgumentType]


def _bubbles(pool: Ranks, store: str, out: Path | None) -> list[Row]:
    """Returns table rows: the share of time that two pipeline stages idle, by schedule."""
    sizes = Sizes(layers=4)
    model, batches = model_of(sizes), data(sizes, 3)
    state = {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
    rows: list[Row] = []
    count = 8
    for kind in KINDS:
        chunks = 4 if kind == "interleaved" else 2
        batch = (batches[0][0][:1], batches[0][1][:1])
        plan = _cut(model, batch, chunks)
        steps = train_pipeline.shares(batches, 1, count)
        found = pool.run(train_pipeline.train, store, plan.sent(kind, count), state, steps, PACE)
        schedule = pipeline(kind, 2, count, chunks=chunks)
        measured = min(_waiting([(b, t) for _, _, b, t in found], i) for i in range(len(steps)))
        expected = formula(kind, 2, count, chunks)
        shown = [f"{schedule.bubble:.1%}", f"{measured:.1%}", f"{expected:.1%}"]
        rows.append([f"pipeline {kind}", "bubble", *shown])
        if out is not None:
            (out / f"{kind}.svg").write_text(pipeline_timeline(schedule))
    return rows


def _waiting(times: Sequence[tuple[Sequence[float], Sequence[float]]], step: int) -> float:
    """Returns the share of training step `step` in which pipeline ranks idle, from `times`."""
    busy = sum(own[step] for own, _ in times)
    return 1 - busy / (len(times) * max(taken[step] for _, taken in times))


def _cut(model: Llama, batch: tuple[torch.Tensor, ...], chunks: int) -> train_pipeline.Plan:
    return train_pipeline.cut(model, batch, 2, 1, chunks)


def _kib(count: float) -> str:
    return f"{count / 1024:.0f}"


def worst(rows: Sequence[Row]) -> float:
    """Returns the largest relative error of the simulated peaks of memory in `rows`."""
    peaks = [(float(row[2]), float(row[3])) for row in rows if row[1].startswith("peak")]
    return max(abs(simulated / measured - 1) for simulated, measured in peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of ZeRO and bubbles of pipelines")
    parser.add_argument("out", nargs="?", type=Path, help="folder for timelines")
    story(parser.parse_args().out)


if __name__ == "__main__":
    main()
