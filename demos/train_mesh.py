"""Training on a mesh: one small Llama under every strategy, its losses against one process.

    python -m stack.demos.train_mesh [--steps 10] [--only NAME ...] [--out FOLDER]

Then the cost of strategies, simulated and measured: memory of ZeRO by stage, bubbles of pipelines
by schedule; and timelines of a step, as drawings and as Perfetto traces.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stack.demos.llama import (
    COLUMNS,
    ROWS,
    Llama,
    Sizes,
    attended,
    attended_by_hand,
    data,
)
from stack.explore.table import table
from stack.ir import parse
from stack.ir.files import large_constants
from stack.ir.func import Func
from stack.mesh.meshes import parse_mesh
from stack.mesh.ops import traffic
from stack.mesh.sharding import replicated
from stack.passes.sharding.training_step import Optimizer, carried
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.mesh import parts_of
from stack.run.ranks import Ranks
from stack.sim.pipeline import KINDS

Array = np.ndarray[Any, Any]
TIDY = "canonicalize,unmerge,exchange,canonicalize"
ADAM = Optimizer("adam", ("*.weight",), rate=1e-3, epsilon=1e-5)


@dataclass(frozen=True)
class Strategy:
    """A sharding strategy for a training step.

    Attributes:
        passes: passes that shard the step over the mesh.
        local: passes that produce the program of a rank.
        model: `llama`, `experts`, `hosted`, which is `llama` with the hosted operator of attention,
            or `jax`, which is `llama` written in JAX.
    """

    mesh: str
    passes: str
    local: str = "spmd"
    model: str = "llama"


def strategies(ranks: int = 8, inner: int = 4) -> dict[str, Strategy]:
    """Returns strategies by name on `ranks` ranks; with two axes, the inner one has `inner`."""
    outer, flat = ranks // inner, f"dp={ranks}"
    tensor, context, mixed = (f"dp={outer}, {axis}={inner}" for axis in ("tp", "cp", "ep"))
    both = f"cp={outer}, tp={inner}"
    heads, experts = {"by": "heads"}, {"experts": ["*.experts.up.weight", "*.experts.down.weight"]}
    weights = {"columns": COLUMNS, "rows": ROWS}
    tensor_parallel = placing(tensor, data_parallel={}, tensor_parallel=weights)
    sequence = {**weights, "sequence": 1}
    ring = placing(context, data_parallel={}, context_parallel={})
    zigzag = placing(context, data_parallel={}, context_parallel={"order": "zigzag"})
    return {
        "DP": Strategy(flat, placing(flat, data_parallel={})),
        f"DP{outer} x TP{inner}": Strategy(tensor, tensor_parallel),
        f"DP{outer} x TP{inner} + SP": Strategy(
            tensor, placing(tensor, data_parallel={}, tensor_parallel=sequence)
        ),
        **{
            name: Strategy(flat, placing(flat, data_parallel={}, zero={"stage": stage}))
            for stage, name in enumerate(("ZeRO-1", "ZeRO-2", "FSDP"), start=1)
        },
        f"DP{outer} x CP{inner} ring": Strategy(context, ring, "spmd,ring"),
        f"DP{outer} x CP{inner} ring zigzag": Strategy(context, zigzag, "spmd,ring"),
        f"DP{outer} x CP{inner} heads": Strategy(
            context, placing(context, data_parallel={}, context_parallel=heads)
        ),
        f"DP{outer} x CP{inner} heads, attention by hand": Strategy(
            context,
            placing(context, data_parallel={}, context_parallel=heads),
            model="hosted",
        ),
        f"CP{outer} ring x TP{inner}": Strategy(
            both, placing(both, context_parallel={}, tensor_parallel=weights), "spmd,ring"
        ),
        f"DP{outer} x EP{inner}": Strategy(
            mixed,
            f"{placing(mixed, data_parallel={})},"
            f"{placing(mixed, data_parallel={'axis': 'ep'}, expert_parallel=experts)}",
            model="experts",
        ),
        f"JAX DP{outer} x TP{inner}": Strategy(tensor, tensor_parallel, model="jax"),
        f"JAX DP{outer} x CP{inner} ring": Strategy(context, ring, "spmd,ring", "jax"),
    }


def placing(mesh: str, **passes: Mapping[str, Any]) -> str:
    """Formats the passes that shard a program over a mesh, with their options, as text."""
    made: list[str] = []
    for name, options in passes.items():
        given = {"mesh": mesh, **options}
        made.append(f"{name}{{{', '.join(f'{k}={json.dumps(v)}' for k, v in given.items())}}}")
    return ",".join(made)


@dataclass(frozen=True)
class Planned:
    """A training step on a mesh.

    Attributes:
        placed: the step on whole values, with their shardings.
        local: the program of one rank.
        carried: maps results to the parameters that they are fed back to.
    """

    mesh: str
    placed: Func
    local: Func
    carried: dict[int, int]

    def sent(self) -> tuple[str, str, dict[str, Array], dict[int, int]]:
        """Returns the data that each rank needs: mesh, IR text, constants, carried results."""
        constants = large_constants([self.local])
        return self.mesh, str(self.local), {n: c.array for n, c in constants.items()}, self.carried


def step_of(model: Llama, batch: tuple[torch.Tensor, ...], jax: bool = False) -> Func:
    """Returns the training step of a model, or of its JAX version: loss, gradients, Adam."""
    fn: Any = model
    args: Sequence[Any] = batch
    if jax:
        from stack.demos.llama_jax import llama_of, weights_of

        fn = llama_of(model.sizes)
        tokens = (t.numpy().astype(np.int32) for t in batch)
        args = (*weights_of(dict(model.named_parameters())), *tokens)
    return ADAM.step(Pipeline(TIDY).run(gradients_of(fn, args)).func)


def planned(step: Func, strategy: Strategy) -> Planned:
    """Plans a step on a mesh."""
    placed = Pipeline(f"{strategy.passes},propagate,reshard").run(step).func
    local = Pipeline(strategy.local).run(placed).func
    return Planned(strategy.mesh, placed, local, carried(step))


def arrays_of(step: Func, model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> list[Array]:
    """Returns whole arrays for the step's parameters: weights, inputs, and zero state."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held |= dict(zip("xy", batch))
    found: list[Array] = []
    for p in step.params:
        name = str(p.attrs["name"])
        zeros = np.zeros([int(str(n)) for n in p.shape], p.dtype.numpy)
        found.append(held[name].detach().numpy().astype(zeros.dtype) if name in held else zeros)
    return found


def split(plan: Planned, arrays: Sequence[Array]) -> list[list[Array]]:
    """Returns each rank's shards of the parameters."""
    mesh = plan.placed.meshes[0]
    parts = [
        parts_of(a, p.tensor.sharding or replicated(mesh, p.tensor.rank))
        for p, a in zip(plan.placed.params, arrays, strict=True)
    ]
    return [[held[rank] for held in parts] for rank in range(mesh.ranks)]


def inputs_of(plan: Planned, batches: Sequence[Sequence[torch.Tensor]]) -> list[list[Any]]:
    """Returns each rank's shards of all batches, as pairs of parameter number and arrays."""
    places = {str(p.attrs["name"]): i for i, p in enumerate(plan.placed.params)}
    found: list[list[Any]] = [[] for _ in range(plan.placed.meshes[0].ranks)]
    for batch in batches:
        parts: dict[int, list[Array]] = {}
        for name, value in zip("xy", batch):
            p = plan.placed.params[places[name]]
            sharding = p.tensor.sharding or replicated(plan.placed.meshes[0], p.tensor.rank)
            parts[places[name]] = parts_of(value.numpy().astype(p.dtype.numpy), sharding)
        for rank, own in enumerate(found):
            own.append({i: held[rank] for i, held in parts.items()})
    return found


def train(
    rank: int, ranks: int, store: str, sent: Any, parts: list[Array], inputs: list[Any]
) -> tuple[list[float], int]:
    """Runs one rank; returns the losses, and the peak bytes."""
    from stack.frontends.torch.distributed.mesh import join
    from stack.frontends.torch.distributed.rank_program import rank_program

    join(rank, ranks, store)
    mesh, text, constants, back = sent
    program = rank_program(parse_mesh(mesh), parse(text, constants), bucket=1 << 14)
    program.watches = True
    held = [torch.from_numpy(part.copy()) for part in parts]
    losses: list[float] = []
    for batch in inputs:
        for i, part in batch.items():
            held[i] = torch.from_numpy(part.copy())
        results = program(*held)
        losses.append(float(results[0]))
        for result, i in back.items():
            held[i] = results[result]
    return losses, program.peak


def alone(model: torch.nn.Module, batches: Sequence[Sequence[torch.Tensor]]) -> list[float]:
    """Trains with PyTorch in one process as the reference; returns losses, changes the model."""
    adam = torch.optim.Adam(model.parameters(), lr=ADAM.rate, eps=ADAM.epsilon)
    losses: list[float] = []
    for batch in batches:
        loss = model(*batch)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return losses


def model_of(sizes: Sizes, by_hand: bool = False) -> Llama:
    """Returns a new model with fixed random weights, as it is before the first step."""
    torch.manual_seed(0)
    return Llama(sizes, attended_by_hand if by_hand else attended)


def _pipelines(
    model: Llama,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    wanted: Sequence[float],
    pool: Ranks,
    errors: dict[str, float],
    only: Sequence[str],
    folder: str,
) -> list[list[str]]:
    """Returns rows of two-stage pipelines, with the other ranks as replicas."""
    from stack.demos import train_pipeline

    ranks, rows = len(pool.pipes), list[list[str]]()
    replicas = ranks // 2
    state = {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
    for kind in KINDS:
        name = f"PP2 {kind} x DP{replicas}"
        if only and name not in only:
            continue
        count = model.sizes.batch // replicas
        steps = train_pipeline.shares(batches, replicas, count)
        plan = train_pipeline.cut(
            model,
            (batches[0][0][:1], batches[0][1][:1]),
            2,
            replicas,
            4 if kind == "interleaved" else 2,
        )
        found = pool.run(
            train_pipeline.train, str(Path(folder, "store")), plan.sent(kind, count), state, steps
        )
        losses = found[0][0]
        errors[name] = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
        peak = max(peak for _, peak, _, _ in found)
        shown = f"{errors[name]:.1e}"
        rows.append([name, *_ends(losses), shown, f"{peak / 1024:.0f}", "", f"pp=2, dp={replicas}"])
        print(f"{name}: {shown}", flush=True)
    return rows


@dataclass(frozen=True)
class Reference:
    """A model with its training step and batches, and PyTorch's losses in one process."""

    model: Llama
    step: Func
    arrays: list[Array]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    losses: list[float]


def reference(name: str, steps: int) -> Reference:
    """Returns the model called `name`, its training step, and the losses of one process."""
    sizes = Sizes(experts=8 * (name == "experts"))
    model, batches = model_of(sizes, name == "hosted"), data(sizes, steps)
    step = step_of(model, batches[0], jax=name == "jax")
    arrays = arrays_of(step, model, batches[0])
    return Reference(model, step, arrays, batches, alone(model_of(sizes), batches))


def story(steps: int = 10, only: Sequence[str] = (), ranks: int = 8) -> dict[str, float]:
    """Trains under each strategy; returns the largest difference of a loss to one process."""
    torch.set_num_threads(1)
    known = strategies(ranks, min(4, ranks))
    chosen = {n: v for n, v in known.items() if not only or n in only}
    made = {"llama": reference("llama", steps)}
    rows: list[list[str]] = [["one process", *_ends(made["llama"].losses), "", "", "", ""]]
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Ranks(ranks, ["torch"]) as pool:
        for name, strategy in chosen.items():
            if strategy.model not in made:
                made[strategy.model] = reference(strategy.model, steps)
            own = made[strategy.model]
            plan = planned(own.step, strategy)
            parts, inputs = split(plan, own.arrays), inputs_of(plan, own.batches)
            store = str(Path(folder, "store"))
            each = [(store, plan.sent(), *given) for given in zip(parts, inputs, strict=True)]
            found = pool.run_each(train, each)
            losses = found[0][0]
            errors[name] = max(abs(a - b) for a, b in zip(losses, own.losses, strict=True))
            sent = sum(map(traffic, plan.local.nodes))
            shown = [f"{n / 1024:.0f}" for n in (max(peak for _, peak in found), sent)]
            rows.append([name, *_ends(losses), f"{errors[name]:.1e}", *shown, strategy.mesh])
            print(f"{name}: {errors[name]:.1e}", flush=True)
        llama = made["llama"]
        rows += _pipelines(llama.model, llama.batches, llama.losses, pool, errors, only, folder)
    head = ["strategy", "first loss", "last loss", "difference", "peak KiB", "sent KiB", "mesh"]
    print(f"\n{steps} steps on {ranks} gloo processes, each against PyTorch in one:\n")
    print(table(head, rows))
    return errors


def _ends(losses: Sequence[float]) -> tuple[str, str]:
    return f"{losses[0]:.5f}", f"{losses[-1]:.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="a small Llama under every strategy")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="NAME", help="run only these strategies"
    )
    parser.add_argument("--out", type=Path, help="folder for timelines of a step")
    args = parser.parse_args()
    story(args.steps, args.only)
    if not args.only:
        from stack.demos import sharding_measured

        sharding_measured.story(args.out)


if __name__ == "__main__":
    main()
