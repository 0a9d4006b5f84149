"""A training step on the ranks started by torchrun, as a user writes it.

    torchrun --nproc-per-node 4 -m stack.demos.torchrun
    torchrun --nproc-per-node 8 -m stack.demos.torchrun --mesh "dp=2, tp=4" --steps 10

Every rank traces the model, plans the step and takes its shards. Before the first step, ranks check
that they are about to run the same program. They use NCCL if each has a GPU, else gloo.
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist

from stack.demos import rank
from stack.demos.llama import COLUMNS, ROWS, Llama, Sizes, data
from stack.demos.train_mesh import Strategy, alone, arrays_of, planned, step_of
from stack.frontends.torch.distributed.mesh import leave
from stack.frontends.torch.distributed.rank_program import rank_program
from stack.mesh.sharding import replicated
from stack.run.mesh import cuts_of


def train(mesh: str, sizes: Sizes, steps: int, limit: float) -> list[float]:
    """Trains for some steps; returns the losses, which are the same on all ranks."""
    device = rank.join(limit)
    torch.manual_seed(0)
    model, batches = Llama(sizes), data(sizes, steps)
    step = step_of(model, batches[0])

    split = f"columns={json.dumps(COLUMNS)}, rows={json.dumps(ROWS)}"
    passes = f'data_parallel{{mesh="{mesh}"}},tensor_parallel{{mesh="{mesh}", {split}}}'
    plan = planned(step, Strategy(mesh, passes))
    program = rank_program(
        plan.placed.meshes[0], plan.local, str(device), limit=limit, carried=plan.carried
    )

    def part(i: int, whole: torch.Tensor) -> torch.Tensor:
        p = plan.placed.params[i]
        place = p.tensor.sharding or replicated(program.mesh, p.tensor.rank)
        return whole[cuts_of(whole.shape, place, dist.get_rank())].contiguous().to(device)

    held = [part(i, torch.from_numpy(a)) for i, a in enumerate(arrays_of(step, model, batches[0]))]
    names = [str(p.attrs["name"]) for p in plan.placed.params]
    losses: list[float] = []
    for batch in batches:
        for name, value in zip("xy", batch):
            held[names.index(name)] = part(names.index(name), value)
        results = program(*held)
        losses.append(float(results[0]))
        for result, i in plan.carried.items():
            held[i] = results[result]
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="a small Llama on the ranks of torchrun")
    parser.add_argument("--mesh", default="dp=2, tp=2", help="axes dp and tp, as dp=2,tp=2")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to wait for a rank")
    args = parser.parse_args()
    sizes = Sizes(layers=args.layers)
    losses = train(args.mesh, sizes, args.steps, args.limit)
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        wanted = alone(Llama(sizes), data(sizes, args.steps))
        worst = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
        print("losses: " + ", ".join(f"{loss:.5f}" for loss in losses))
        print(f"{dist.get_world_size()} ranks on {args.mesh}: within {worst:.1e} of one process")
    leave()


if __name__ == "__main__":
    main()
