"""Pipeline training: the stages of a small Llama on gloo processes, under every schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stack.demos.train_mesh import ADAM, TIDY
from stack.ir import parse
from stack.ir.files import large_constants
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.passes.sharding.strategies.stages import Stages, Weigh, free, matmul_flops, stages_of
from stack.passes.sharding.training_step import carried
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.sim.pipeline import ChunkProgram, order_of, pipeline

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Plan:
    """A model cut into a pipeline with replicas of each stage.

    Attributes:
        results: meaning of the results: the loss, then the weights of the gradients.
        ranks: number of stages.
        replicas: number of copies of each stage.
    """

    stages: Stages
    results: dict[str, str]
    ranks: int
    replicas: int
    chunks: int

    def sent(self, kind: str, batches: int) -> tuple[Any, ...]:
        """Returns the data sent to every rank."""
        funcs = [part.func for part in self.stages.parts.values()]
        data = {n: c.array for n, c in large_constants(funcs).items()}
        parts = {
            at: (str(part.func), part.reads, part.makes) for at, part in self.stages.parts.items()
        }
        order = order_of(pipeline(kind, self.ranks, batches, chunks=self.chunks))
        return parts, data, order, self.results, self.replicas, self.chunks


def cut(
    model: torch.nn.Module,
    batch: tuple[torch.Tensor, ...],
    ranks: int,
    replicas: int,
    chunks: int,
    balance: float = 0.0,
    weigh: Weigh = matmul_flops,
    send: Callable[[int], float] = free,
) -> Plan:
    """Cuts a model into stages, for microbatches like this one; see `stages_of`."""
    func = Pipeline(TIDY).run(gradients_of(model, batch)).func
    stages = stages_of(func, chunks, balance=balance, weigh=weigh, send=send)
    weights = [str(p.attrs["name"]) for p in func.params if str(p.attrs["name"]).endswith("weight")]
    names = dict(zip((name for _, name in stages.results), ("loss", *weights), strict=True))
    return Plan(stages, names, ranks, replicas, chunks)


def train(
    rank: int,
    ranks: int,
    store: str,
    sent: Any,
    state: dict[str, Array],
    batches: Sequence[Any],
    pace: float = 0.0,
) -> tuple[list[float], int, list[float], list[float]]:
    """Runs one rank; returns losses, peak bytes, and busy and total seconds by step.

    `pace`: minimal seconds of a part of a stage, see `PipelineRank`.
    """
    import torch.distributed as dist

    from stack.frontends.torch.distributed.mesh import join
    from stack.frontends.torch.distributed.pipeline import PipelineRank

    join(rank, ranks, store)
    texts, data, order, results, replicas, chunks = sent
    parts = {at: ChunkProgram(parse(text, data), *rest) for at, (text, *rest) in texts.items()}
    depth, replica = ranks // replicas, rank % replicas
    groups = [dist.new_group([s * replicas + r for r in range(replicas)]) for s in range(depth)]
    runner = PipelineRank(
        parts,
        order,
        rank // replicas,
        [chunk % depth * replicas + replica for chunk in range(chunks)],
        results,
        groups[rank // replicas],
        pace,
    )
    held = {name: torch.from_numpy(value.copy()) for name, value in state.items()}
    update = _Update(parts)
    losses: list[float] = []
    busy, taken = list[float](), list[float]()
    for step in batches:
        mine = step[replica]
        dist.barrier()
        start = time.perf_counter()
        total, gradients = runner.step(held, [_tensors(b) for b in mine])
        dist.barrier()
        busy.append(runner.busy)
        taken.append(time.perf_counter() - start)
        losses.append(_sum(float(total)) / (len(mine) * replicas))
        held |= update(held, gradients)
    return losses, runner.peak, busy, taken


class _Update:
    """Adam on the weights of one rank, initialized from their first gradients."""

    def __init__(self, parts: Mapping[Any, ChunkProgram]) -> None:
        self.parts = parts
        self.func: Func | None = None
        self.moments: dict[int, torch.Tensor] = {}

    def __call__(
        self, held: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns the updated weights that have gradients."""
        from stack.frontends.torch.replay.space import TorchSpace

        names = list(gradients)
        if self.func is None:
            self.func = ADAM.alone({n: _type(self.parts, n) for n in names})
        values = [held[n] for n in names] + [gradients[n] for n in names]
        values += [
            self.moments.get(i, torch.zeros([int(str(n)) for n in p.shape]))
            for i, p in enumerate(self.func.params[len(values) :], len(values))
        ]
        made = evaluate(self.func.body, values, TorchSpace("cpu"))
        places = carried(self.func)
        self.moments = {i: made[r] for r, i in places.items() if i >= len(names)}
        return {names[i]: made[r] for r, i in places.items() if i < len(names)}


def _tensors(batch: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in batch.items()}


def _sum(value: float) -> float:
    import torch.distributed as dist

    held = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(held)
    return float(held)


def _type(parts: Mapping[Any, ChunkProgram], name: str) -> Any:
    """Returns the tensor type of weight `name`, from the pipeline stage that reads it."""
    return next(
        p.tensor for part in parts.values() for p in part.func.params if p.attrs["name"] == name
    )


def shares(
    batches: Sequence[Sequence[torch.Tensor]], replicas: int, count: int
) -> list[list[list[dict[str, Array]]]]:
    """Splits batches: returns the microbatches of each replica, for each training step."""
    return [
        [
            [
                {"x": x.numpy(), "y": y.numpy()}
                for x, y in zip(xs.chunk(count), ys.chunk(count), strict=True)
            ]
            for xs, ys in zip(batch[0].chunk(replicas), batch[1].chunk(replicas), strict=True)
        ]
        for batch in batches
    ]
