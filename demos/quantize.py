"""A Llama-like model with weights packed by the compiler: size, error layer by layer, and speed.

    python -m stack.demos.quantize [--width 512] [--layers 2] [--schemes w4a16,w4a16:gptq]

Calibrators follow a colon; they use a sample of each matmul's inputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import stack
from stack.demos import models
from stack.explore.table import table

SCHEMES = (
    *("w8a8_dynamic", "w8a8_dynamic:smoothquant", "w8a8_static:smoothquant+minmax", "q8_0"),
    *("w4a16", "w4a16:awq", "w4a16:gptq", "w4a16_awq:awq", "w4a16_gptq:gptq", "nf4", "nvfp4"),
)
SHOWN = "w4a16:gptq"
CALLS = 128  # one-token calls in the sample
GROUPS = {"nf4": 64}


def model(width: int, layers: int) -> Any:
    """Returns blocks in sequence, which return the output of each."""
    import torch

    from stack.demos import models_torch

    heads = {"heads": width // 64, "kv_heads": width // 256}
    config = models.LlamaConfig(width, ffn=3 * width, seq=1, **heads)

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = [models_torch.make_llama_block(replace(config, seed=i)) for i in range(layers)]
            self.blocks = torch.nn.ModuleList(block for block, _ in made)
            (self.example,) = made[0][1]

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen = []
            for block in self.blocks:
                x = block(x)
                seen.append(x)
            return tuple(seen)

    made = Layers().eval().requires_grad_(False)
    for weight in made.parameters():
        if weight.ndim == 1:  # gains of norms: a few channels are large, as in trained models
            weight[::64] *= 8
    return made


def tokens(count: int, width: int, seed: int) -> np.ndarray:
    """Returns activations with common directions, as in a trained model."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(0).standard_normal((width // 16, width)) / 4
    made = rng.standard_normal((count, 1, 1, width // 16)) @ common
    return (made + 0.3 * rng.standard_normal((count, 1, 1, width))).astype(np.float32)


def milliseconds(call: Any, *args: Any, rounds: int = 20) -> float:
    """Returns the median milliseconds of some calls."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call(*args)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def megabytes(func: stack.Func, arguments: Sequence[str]) -> float:
    """Returns the megabytes of a program's parameters, without its arguments."""
    held = [p.tensor for p in func.params if p.attrs["name"] not in arguments]
    return sum(int(t.size) * t.dtype.bytes for t in held) / 1e6  # pyright: ignore


def errors(found: Sequence[Any], exact: Sequence[Any]) -> list[str]:
    """Returns the relative error of each layer's output `found` to `exact`, as percentages."""
    return [f"{float((a - b).norm() / b.norm()):.2%}" for a, b in zip(found, exact, strict=True)]


def passes_for(way: str, sample: Path) -> str:
    """Returns the pass `quantize` as text for `way`, "scheme" or "scheme:calibrators"."""
    scheme, _, calibrators = way.partition(":")
    chosen = f", calibrate={calibrators}, sample={sample}" if calibrators else ""
    return f"quantize{{scheme={scheme}, group={GROUPS.get(scheme, 128)}{chosen}}}"


def main(argv: Sequence[str] | None = None) -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 256")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    given = parser.parse_args(argv)
    whole = model(given.width, given.layers)
    x = torch.from_numpy(tokens(1, given.width, seed=1)[0])
    exact = whole(x)
    plain = stack.compile(whole, x)
    base = milliseconds(plain, x)
    layers = [f"layer {i}" for i in range(given.layers)]
    size = megabytes(plain.func, plain.graph.captured.arguments)
    rows = [["f32", f"{size:.1f} MB", "1.00", f"{base:.2f}", "1.00x", *errors(plain(x), exact)]]
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample.npz"
        (name,) = plain.graph.captured.arguments
        np.savez(sample, allow_pickle=False, **{name: tokens(CALLS, given.width, seed=2)})
        for way in given.schemes.split(","):
            packed = stack.compile(whole, x, passes=passes_for(way, sample))
            took, own = milliseconds(packed, x), packed.graph.captured
            now = megabytes(packed.func, own.arguments)
            ratios = f"{now:.1f} MB", f"{now / size:.2f}", f"{took:.2f}", f"{base / took:.2f}x"
            print(f"{way}: {now:.1f} MB", file=sys.stderr, flush=True)
            rows.append([way, *ratios, *errors(packed(x), exact)])
            if way == SHOWN:
                notes = [str(note) for note in packed.run["weights"].notes]
    print(f"a token through {given.layers} Llama blocks of width {given.width}, on this CPU\n")
    print(table(["weights", "size", "of f32", "ms", "speed", *layers], rows))
    if notes:
        print(f"\nnotes of the pass on {SHOWN}, by matmul: error alone, and after all before it:")
        print("\n".join(f"  {note}" for note in notes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
