"""Training on a mesh: one small Llama under every strategy, its losses beside one process's.

python -m stack.demos.train_mesh [--steps 10] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stack.demos.llama import COLUMNS, ROWS, Llama, Sizes, data
from stack.explore.table import table
from stack.ir import parse
from stack.ir.files import large_constants
from stack.ir.mesh import parse_mesh
from stack.ir.node import Func
from stack.ir.sharding import replicated
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.mesh import parts_of
from stack.run.pipeline import KINDS
from stack.run.ranks import Ranks
from stack.run.step import Optimizer, carried

Array = np.ndarray[Any, Any]
TIDY = "canonicalize,unmerge,canonicalize"
ADAM = Optimizer("adam", ("*.weight",), rate=1e-3, epsilon=1e-5)


def strategies(ranks: int = 8, tensor: int = 4) -> dict[str, tuple[str, str]]:
    """For each name the mesh and the passes that place a step on it."""
    flat, pair = f"dp={ranks}", f"dp={ranks // tensor}, tp={tensor}"
    context = f"dp={ranks // tensor}, cp={tensor}"
    data_of = "data_parallel{{mesh={0}}}".format
    return {
        "DP": (flat, data_of(json.dumps(flat))),
        f"DP{ranks // tensor} x TP{tensor}": (pair, _passes(pair, -1)),
        f"DP{ranks // tensor} x TP{tensor} + SP": (pair, _passes(pair, 1)),
        "ZeRO-1": (flat, _zero(flat, 1)),
        "ZeRO-2": (flat, _zero(flat, 2)),
        "FSDP": (flat, _zero(flat, 3)),
        f"DP{ranks // tensor} x CP{tensor}": (
            context,
            f"{data_of(json.dumps(context))},"
            f"data_parallel{{mesh={json.dumps(context)}, axis=cp, dim=1}}",
        ),
    }


def _passes(mesh: str, sequence: int) -> str:
    quoted = json.dumps(mesh)
    columns, rows = (json.dumps(list(names)) for names in (COLUMNS, ROWS))
    return (
        f"data_parallel{{mesh={quoted}}},"
        f"tensor_parallel{{mesh={quoted}, columns={columns}, rows={rows}, sequence={sequence}}}"
    )


def _zero(mesh: str, stage: int) -> str:
    quoted = json.dumps(mesh)
    return f"data_parallel{{mesh={quoted}}},zero{{mesh={quoted}, stage={stage}}}"


@dataclass(frozen=True)
class Planned:
    """A training step on a mesh.

    Attributes:
        placed: the step of whole values, with their places.
        local: what one rank runs.
        carried: which results go in again, and for which parameters.
    """

    mesh: str
    placed: Func
    local: Func
    carried: dict[int, int]

    def sent(self) -> tuple[str, str, dict[str, Array], dict[int, int]]:
        """What a rank is given."""
        constants = large_constants([self.local])
        return self.mesh, str(self.local), {n: c.array for n, c in constants.items()}, self.carried


def step_of(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> Func:
    """The training step of a model: loss, gradients, Adam."""
    return ADAM.step(Pipeline(TIDY).run(gradients_of(model, batch)).func)


def planned(step: Func, mesh: str, passes: str) -> Planned:
    """A step on a mesh."""
    placed = Pipeline(f"{passes},propagate,reshard").run(step).func
    return Planned(mesh, placed, Pipeline("spmd").run(placed).func, carried(step))


def arrays_of(step: Func, model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> list[Array]:
    """Whole arrays for the parameters of a step: weights, inputs, and state that starts at 0."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held |= dict(zip("xy", batch))
    found: list[Array] = []
    for p in step.params:
        name = str(p.attrs["name"])
        zeros = np.zeros([int(str(n)) for n in p.shape], p.dtype.numpy)
        found.append(held[name].detach().numpy().copy() if name in held else zeros)
    return found


def split(plan: Planned, arrays: Sequence[Array]) -> list[list[Array]]:
    """For each rank its parts of the parameters."""
    mesh = plan.placed.meshes[0]
    parts = [
        parts_of(a, p.tensor.sharding or replicated(mesh, p.tensor.rank))
        for p, a in zip(plan.placed.params, arrays, strict=True)
    ]
    return [[held[rank] for held in parts] for rank in range(mesh.ranks)]


def inputs_of(plan: Planned, batches: Sequence[Sequence[torch.Tensor]]) -> list[list[Any]]:
    """For each rank its parts of all batches, by the number of the parameter."""
    places = {str(p.attrs["name"]): i for i, p in enumerate(plan.placed.params)}
    found: list[list[Any]] = [[] for _ in range(plan.placed.meshes[0].ranks)]
    for batch in batches:
        parts = {
            places[name]: parts_of(value.numpy(), plan.placed.params[places[name]].tensor.sharding)  # pyright: ignore[reportArgumentType]
            for name, value in zip("xy", batch)
        }
        for rank, own in enumerate(found):
            own.append({i: held[rank] for i, held in parts.items()})
    return found


def train(
    rank: int, ranks: int, store: str, sent: Any, parts: list[Array], inputs: list[Any]
) -> tuple[list[float], int]:
    """What one rank does: the losses, and the most bytes that it held."""
    from stack.frontends.torch_mesh import join
    from stack.frontends.torch_steps import rank_program

    join(rank, ranks, store)
    mesh, text, constants, back = sent
    program = rank_program(parse_mesh(mesh), parse(text, constants), bucket=1 << 14)
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
    """Losses of the same steps in PyTorch, in this process; the model is changed."""
    adam = torch.optim.Adam(model.parameters(), lr=ADAM.rate, eps=ADAM.epsilon)
    losses: list[float] = []
    for batch in batches:
        loss = model(*batch)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return losses


def model_of(sizes: Sizes) -> Llama:
    """The model before the first step."""
    torch.manual_seed(0)
    return Llama(sizes)


def _pipelines(
    model: Llama,
    sizes: Sizes,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    wanted: Sequence[float],
    pool: Ranks,
    errors: dict[str, float],
    only: Sequence[str],
    folder: str,
) -> list[list[str]]:
    """Rows of two stages, each with the other ranks as replicas."""
    from stack.demos import train_pipeline

    ranks, rows = len(pool.pipes), list[list[str]]()
    replicas = ranks // 2
    state = {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
    for kind in KINDS:
        name = f"PP2 {kind} x DP{replicas}"
        if only and name not in only:
            continue
        count = sizes.batch // replicas
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
        rows.append([name, *_ends(losses), shown, f"{peak / 1024:.0f}", f"pp=2, dp={replicas}"])
        print(f"{name}: {shown}", flush=True)
    return rows


def story(steps: int = 10, only: Sequence[str] = (), ranks: int = 8) -> dict[str, float]:
    """Train under each strategy; the largest difference of a loss from that of one process."""
    sizes = Sizes()
    torch.set_num_threads(1)
    model, batches = model_of(sizes), data(sizes, steps)
    step = step_of(model, batches[0])
    arrays = arrays_of(step, model, batches[0])
    wanted = alone(model, batches)
    rows: list[list[str]] = [["one process", *_ends(wanted), "", "", ""]]
    errors: dict[str, float] = {}
    known = strategies(ranks, min(4, ranks))
    chosen = {n: v for n, v in known.items() if not only or n in only}
    with tempfile.TemporaryDirectory() as folder, Ranks(ranks, ["torch"]) as pool:
        for name, (mesh, passes) in chosen.items():
            plan = planned(step, mesh, passes)
            parts, inputs = split(plan, arrays), inputs_of(plan, batches)
            store = str(Path(folder, "store"))
            each = [(store, plan.sent(), *own) for own in zip(parts, inputs, strict=True)]
            found = pool.run_each(train, each)
            losses = found[0][0]
            errors[name] = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
            peak = max(peak for _, peak in found)
            rows.append([name, *_ends(losses), f"{errors[name]:.1e}", f"{peak / 1024:.0f}", mesh])
            print(f"{name}: {errors[name]:.1e}", flush=True)
        rows += _pipelines(model_of(sizes), sizes, batches, wanted, pool, errors, only, folder)
    head = ["strategy", "first loss", "last loss", "largest difference", "peak KiB", "mesh"]
    print(f"\n{steps} steps on {ranks} gloo processes:\n")
    print(table(head, rows))
    return errors


def _ends(losses: Sequence[float]) -> tuple[str, str]:
    return f"{losses[0]:.5f}", f"{losses[-1]:.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="a small Llama under every strategy")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME")
    args = parser.parse_args()
    story(args.steps, args.only)


if __name__ == "__main__":
    main()
