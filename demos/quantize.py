"""A Llama-like model whose weights the compiler packs: size, error layer by layer, and speed.

python -m stack.demos.quantize [--width 1024] [--layers 4] [--schemes w4a16,nf4,q8_0]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import stack
from stack.demos import models
from stack.explore.table import table

SCHEMES = "w8a8_dynamic,q8_0,w4a16,nf4,mx,nvfp4"
GROUPS = {"nf4": 64}


def model(width: int, layers: int) -> Any:
    """Blocks one after the other; gives what each of them gives."""
    import torch

    heads = {"heads": width // 64, "kv_heads": width // 256}
    config = models.LlamaConfig(width, ffn=3 * width, seq=1, **heads)

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = [models.torch_llama_block(replace(config, seed=i)) for i in range(layers)]
            self.blocks = torch.nn.ModuleList(block for block, _ in made)
            (self.example,) = made[0][1]

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen = []
            for block in self.blocks:
                x = block(x)
                seen.append(x)
            return tuple(seen)

    return Layers().eval().requires_grad_(False)


def milliseconds(call: Any, *args: Any, rounds: int = 20) -> float:
    """The median of some calls."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call(*args)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def megabytes(func: stack.Func, arguments: Sequence[str]) -> float:
    """What a program is given besides its arguments."""
    held = [p.tensor for p in func.params if p.attrs["name"] not in arguments]
    return sum(int(t.size) * t.dtype.bytes for t in held) / 1e6  # pyright: ignore


def errors(found: Sequence[Any], exact: Sequence[Any]) -> list[str]:
    """How far what each layer gives is off, as a share of its size."""
    return [f"{float((a - b).norm() / b.norm()):.2%}" for a, b in zip(found, exact, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 256")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--schemes", default=SCHEMES)
    given = parser.parse_args(argv)
    whole = model(given.width, given.layers)
    x = whole.example
    exact = whole(x)
    plain = stack.compile(whole, x)
    base = milliseconds(plain, x)
    layers = [f"layer {i}" for i in range(given.layers)]
    size = megabytes(plain.func, plain.graph.captured.arguments)
    rows = [["f32", f"{size:.1f} MB", "1.00", f"{base:.2f}", "1.00x", *errors(plain(x), exact)]]
    for scheme in given.schemes.split(","):
        group = GROUPS.get(scheme, 128)
        packed = stack.compile(whole, x, passes=f"quantize{{scheme={scheme}, group={group}}}")
        took, own = milliseconds(packed, x), packed.graph.captured
        now = megabytes(packed.func, own.arguments)
        ratios = f"{now:.1f} MB", f"{now / size:.2f}", f"{took:.2f}", f"{base / took:.2f}x"
        rows.append([scheme, *ratios, *errors(packed(x), exact)])
        if scheme == "w4a16":
            notes = [str(note) for note in packed.run["weights"].notes]
    print(f"a token through {given.layers} Llama blocks of width {given.width}, on this CPU\n")
    print(table(["weights", "size", "of f32", "ms", "speed", *layers], rows))
    if "w4a16" in given.schemes:
        print("\nwhat the pass says of w4a16, product by product:")
        print("\n".join(f"  {note}" for note in notes[:7]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
