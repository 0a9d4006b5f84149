"""Our strategies as training steps on the ranks of torchrun, each with the simulator's prediction.

A strategy is a list of passes. It runs as a `rank_program`, or as the stages of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stack.demos.llama import COLUMNS, ROWS
from stack.demos.train_mesh import TIDY, Strategy, placing, planned
from stack.demos.train_pipeline import cut
from stack.frontends.torch.distributed.cuda_graph import Recorded
from stack.frontends.torch.distributed.pipeline import PipelineRank
from stack.frontends.torch.distributed.rank_compute import compute_of, stream_balance
from stack.frontends.torch.distributed.rank_program import rank_program
from stack.frontends.torch.replay.space import TorchSpace
from stack.ir.func import Func
from stack.mesh.sharding import replicated
from stack.passes.sharding.training_step import Optimizer, carried
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.mesh import cuts_of
from stack.sim import Cluster, Simulation, simulate, simulate_stages
from stack.sim.costs import compute_seconds, message_seconds
from stack.sim.pipeline import order_of, pipeline

RATE = 0.1
WEIGHTS = {"columns": (*COLUMNS, "head.weight"), "rows": ROWS}
Batch = tuple[Tensor, Tensor]
Call = Callable[[], Tensor]


def strategies(ranks: int) -> dict[str, Strategy]:
    """Returns the strategies with one program for all ranks; two-axis ones need 4 ranks."""
    data, tensor, context = (f"{axis}={ranks}" for axis in ("dp", "tp", "cp"))
    heads = {"by": "heads"}
    found = {
        "FSDP": Strategy(data, placing(data, data_parallel={}, zero={"stage": 3})),
        "TP": Strategy(tensor, placing(tensor, tensor_parallel=WEIGHTS)),
        "TP + SP": Strategy(tensor, placing(tensor, tensor_parallel={**WEIGHTS, "sequence": 1})),
        "CP heads": Strategy(context, placing(context, context_parallel=heads)),
        "CP ring": Strategy(context, placing(context, context_parallel={}), "spmd,ring"),
        "CP ring zigzag": Strategy(
            context, placing(context, context_parallel={"order": "zigzag"}), "spmd,ring"
        ),
    }
    if ranks >= 4:
        mesh = f"dp=2, tp={ranks // 2}"
        both = Strategy(mesh, placing(mesh, data_parallel={}, tensor_parallel=WEIGHTS))
        found[f"DP2 x TP{ranks // 2}"] = both
    return found


@dataclass(frozen=True)
class Ours:
    """One model and its batch, which are split over the ranks.

    Attributes:
        make: builds the whole model, the same on all ranks.
        machine: the simulated machine.
        backend: compiles each rank's computation; "" runs it op by op.
        options: of the backend.
    """

    make: Callable[[], nn.Module]
    batch: Batch
    machine: Cluster
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def step(self) -> Func:
        """The training step on whole values."""
        func = Pipeline(TIDY).run(gradients_of(self.make(), self.batch)).func
        return Optimizer("sgd", ("*.weight",), rate=RATE).step(func)

    def __call__(self, strategy: Strategy, graph: bool | None = None) -> tuple[Call, Simulation]:
        """Returns a step under a strategy, and the simulation of it."""
        plan = planned(self.step, strategy)
        mesh, device = plan.placed.meshes[0], self.batch[0].device
        expected = simulate(plan.local, mesh, self.machine)
        program = rank_program(
            mesh,
            plan.local,
            str(device),
            backend=self.backend,
            carried=plan.carried,
            graph=graph,
            options=self.options,
        )
        model = self.make()
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        held |= dict(zip("xy", self.batch, strict=True))
        values: list[Tensor] = []
        for p in plan.placed.params:
            sharding = p.tensor.sharding or replicated(mesh, p.tensor.rank)
            whole = held[str(p.attrs["name"])].detach()
            values.append(whole[cuts_of(whole.shape, sharding, program.space.rank)].clone())
        return _stepping(lambda: program(*values), values, plan.carried), expected

    def pipelined(
        self, stages: int = 2, kind: str = "1f1b", graph: bool | None = None
    ) -> tuple[Call, Simulation]:
        """Builds a pipeline, with other ranks as replicas; microbatches have one sequence.

        Stages are cut by predicted time.
        """
        replicas = dist.get_world_size() // stages
        stage, replica = divmod(dist.get_rank(), replicas)
        groups = [
            dist.new_group(range(s * replicas, (s + 1) * replicas)) if replicas > 1 else None
            for s in range(stages)
        ]
        mine = [t.chunk(replicas)[replica] for t in self.batch]
        count = mine[0].shape[0]
        model = self.make()
        balance = stream_balance(TorchSpace(str(mine[0].device)), self.backend)
        micro = (mine[0][:1], mine[1][:1])
        weigh = partial(compute_seconds, machine=self.machine)
        send = partial(message_seconds, machine=self.machine, ranks=dist.get_world_size())
        plan = cut(model, micro, stages, replicas, stages, balance, weigh, send)
        orders = order_of(pipeline(kind, stages, count))
        device = self.batch[0].device
        peers = [chunk * replicas + replica for chunk in range(stages)]
        runner = PipelineRank(
            plan.stages.parts,
            orders,
            stage,
            peers,
            plan.results,
            groups[stage],
            device=str(device),
            backend=self.backend,
        )
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        names = [n for n in runner.weights if n in held]
        own = [n for n in names if n in plan.results.values()]
        types = {str(p.attrs["name"]): p.tensor for part in _funcs(plan) for p in part.params}
        update = Optimizer("sgd", rate=RATE).alone({n: types[n] for n in own})
        compute = compute_of(update, runner.space, self.backend)

        def run(args: Sequence[Tensor]) -> list[Tensor]:
            weights = dict(zip(names, args))
            x, y = (t.split(1) for t in args[len(names) :])
            batches = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
            loss, gradients = runner.step(weights, batches)
            total = torch.zeros((), device=device) + loss
            dist.all_reduce(total)
            made = compute([*(weights[n] for n in own), *(gradients[n] for n in own)])
            return [total / (count * replicas), *made]

        back = {1 + result: names.index(own[at]) for result, at in carried(update).items()}
        is_graph = dist.get_backend() == "nccl" if graph is None else graph
        call = partial(Recorded(back), run) if is_graph else run
        values = [held[n].detach().clone() for n in names] + mine
        expected = simulate_stages(plan.stages.parts, orders, self.machine, replicas)
        expected = replace(
            expected, seconds=expected.seconds + compute_seconds(update, self.machine)
        )
        return _stepping(lambda: call(values), values, back), expected


def _funcs(plan: Any) -> list[Func]:
    return [part.func for part in plan.stages.parts.values()]


def _stepping(
    run: Callable[[], Sequence[Tensor]], values: list[Tensor], back: Mapping[int, int]
) -> Call:
    """Returns a training step that keeps updated values as its next inputs; returns the loss."""

    def step() -> Tensor:
        results = run()
        for result, i in back.items():
            values[i] = results[result]
        return results[0]

    return step
