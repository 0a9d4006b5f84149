"""Sharding: one block of a transformer on a mesh of 8 ranks, on a laptop and without a GPU.

    python -m stack.demos.sharding [OUT] [--mesh dp=2,tp=4]

The shardings of a few values are given; the demo shows what follows: the mesh, the shards of each
value, the communication between ranks and its reasons. All ranks then run in this process, and
their result is compared with PyTorch's. Next, the same block runs under five strategies, compared
by the bytes that a rank sends. Last, training is simulated, and measured on processes of this
machine: memory of ZeRO by stage, and bubbles of pipelines by schedule. OUT gets timelines of a step
as drawings and as Perfetto traces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import stack
from stack.demos import sharding_measured
from stack.demos.partition import partition
from stack.explore.sharding import drawing, table_of
from stack.explore.table import table
from stack.passes.canonicalize import Canonicalize
from stack.rewrite import Pipeline
from stack.run.mesh import simulate

WIDTH, HIDDEN, HEADS = 256, 1024, 8


class Block(torch.nn.Module):
    """Attention and an MLP, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = linear(WIDTH, HIDDEN, bias=False)
        self.down = linear(HIDDEN, WIDTH, bias=False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (f(x).reshape(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) / shape[-1] ** 0.5, -1)
        return self.o((weights @ v).transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(x)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


# torch keeps weights as [out, in]
COLUMNS = tuple(f"{name}.weight: tp" for name in ("q", "k", "v", "up"))
ROWS = tuple(f"{name}.weight: -, tp" for name in ("o", "down"))
WEIGHTS = ("q.weight", "k.weight", "v.weight", "o.weight", "up.weight", "down.weight")
STRATEGIES = {
    "data": ("x: {dp, tp}", "return: {dp, tp}"),
    "tensor": ("x: dp", *COLUMNS, *ROWS, "return: dp"),
    "tensor + sequence": ("x: dp, tp", *COLUMNS, *ROWS, "return: dp, tp"),
    "sharded weights": (
        "x: {dp, tp}",
        *(f"{name}: {{dp, tp}}" for name in WEIGHTS),
        "return: {dp, tp}",
    ),
    "context": ("x: dp, tp", *(f"{name}: -" for name in WEIGHTS), "return: dp, tp"),
}


def story(mesh: str = "dp=2, tp=4") -> dict[str, int]:
    """Shards a block under several strategies; returns the bytes that a rank sends by strategy."""
    torch.manual_seed(0)
    block, x = Block(), torch.randn(8, 64, WIDTH)
    func = Pipeline([Canonicalize()]).run(stack.trace(block, x)).func
    with torch.no_grad():
        wanted = block(x).numpy()
    state = {name: value.detach().numpy() for name, value in block.state_dict().items()}
    arrays = [state.get(str(p.attrs["name"]), x.numpy()) for p in func.params]

    made = partition(func, mesh, STRATEGIES["tensor"])
    print("the given shardings:")
    print(*(f"  {text}" for text in STRATEGIES["tensor"]), sep="\n")
    print(f"\n{drawing(made.placed)}")
    print(f"\n{made.placed}")
    print("why, for some of them:")
    print(*(f"  {note}" for note in made.notes if " to f32" in note or "gelu" in note), sep="\n")
    print(f"\nwhat each of the ranks runs:\n\n{made.local}\n{table_of(made.local)}")

    rows: list[list[str]] = []
    sent: dict[str, int] = {}
    for name, shard in STRATEGIES.items():
        made = partition(func, mesh, shard)
        found = simulate(made.placed, made.local, arrays, filler=np.nan)
        error = np.abs(found.results[0] - wanted).max() / np.abs(wanted).max()
        sent[name] = sum(found.sent.values())
        ops = ", ".join(f"{count} {op}" for op, count in found.counts.items()) or "none"
        rows.append([name, ops, f"{sent[name] / 1024:.0f}", f"{error:.1e}"])
    print("\nall ranks in this process, compared with PyTorch on one:\n")
    print(table(["strategy", "collectives", "KiB sent by a rank", "largest error"], rows))
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description="a transformer block on 8 ranks")
    parser.add_argument("--mesh", default="dp=2, tp=4", help="axes dp and tp, as dp=2,tp=4")
    parser.add_argument("out", nargs="?", type=Path, help="folder for timelines")
    args = parser.parse_args()
    story(args.mesh)
    sharding_measured.story(args.out)


if __name__ == "__main__":
    main()
