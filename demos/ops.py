"""Hosted operators, family by family: their definition, compiled form and cost.

    python -m stack.demos.ops                     all families, on a laptop
    python -m stack.demos.ops scan -o pictures    one of them, with its picture

Each ends in checked results. Times are medians of one run on this machine: only their ratios are
meaningful.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stack.demos.ops_pictures import bars, grids, lines
from stack.demos.ops_products import tell_lora, tell_moe, tell_qgemm
from stack.demos.ops_teller import (
    Teller,
    built,
    bytes_of,
    called,
    drawn,
    function,
    held_by,
    measured,
    median,
)
from stack.explore.table import table
from stack.hosted import find
from stack.ir.func import Func
from stack.ops.attention import Rope, attention, programs, subtree_ends
from stack.ops.attention.programs import Place, Program, scored, spread
from stack.ops.loss.reference import TILE
from stack.ops.scan.associative import gate_combine
from stack.ops.scan.forms import FORMS, Count
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Executable

Array = np.ndarray
LENGTHS = (4096, 16384, 65536, 262144)
MEASURED = 16384  # tokens of the longest that is run
ATTENTION = "attention, one loop (compiled)"
SCAN = "selective scan, all states (compiled)"


# ---- attention


def tell_attention(t: Teller) -> None:
    """Prints how masks, as small programs, fuse into one attention loop, and checks results."""
    size = 12
    documents = np.repeat([0, 1, 2], 4)
    ends = subtree_ends([-1, 0, 1, 1, 0, 4, 4, -1], 4)
    masks = {
        "causal": seen(programs.PLAIN, size, causal=True),
        "window 4": seen(programs.PLAIN, size, causal=True, window=4),
        "documents": seen(programs.DOCUMENTS, size, documents, documents, causal=True),
        "prefix 5": seen(programs.PREFIX, size, np.array(5)),
        "tree": seen(programs.TREE, size, ends),
    }
    rows = [[n, f"{int(m.sum())} of {m.size}"] for n, m in masks.items()]
    t.say(table(["mask", "scores seen"], rows))
    t.draw("attention", grids, masks)

    heads, n, width = 8, 1024, 64
    q, k, v = (drawn(heads, n, width, seed=s) for s in range(3))
    func = function("attention.attention", [q.shape] * 3, "f32 f32 f32", causal=True)
    told = Pipeline("hosted,canonicalize,fold,decompose,canonicalize,stream").run(func)
    notes = next(r for r in told.records if r.name == "stream").notes
    t.say("\nhow the compiler derives the loop over keys, from plain matmuls and a softmax:")
    t.say("\n".join(str(note) for note in notes))
    made = built(func)
    expected = attention(q, k, v, causal=True)
    error = t.check("attention", made.run([q, k, v])[0], expected)
    held, scores = held_by(func, made), 4 * heads * n * n
    t.say(
        f"{len(made.kernels)} kernel; it uses {held / 1e6:.1f} MB, scores would take"
        f" {scores / 1e6:.1f} MB; error {error:.1e}"
    )
    by_formula = median(lambda: written_out(q, k, v))
    ours = median(lambda: made.run([q, k, v]))
    t.say(f"NumPy's matmuls and softmax take {by_formula / ours:.1f}x as long")

    with_lse, merge = find("attention.with_lse"), find("attention.merge")
    half = n // 2
    parts = [with_lse(q[:, -1:], k[:, s], v[:, s]) for s in (slice(0, half), slice(half, n))]
    outs, lses = (np.stack(x, -1) for x in zip(*parts))
    merged = merge(outs.swapaxes(-1, -2), lses)[0]
    t.check("split keys", merged, expected[:, -1:])
    rope = Rope(width, kind="yarn", factor=4.0)
    cos, sin = rope.tables(np.arange(n))
    turned = find("attention.rope")(q, cos, sin)
    t.check("rope", (turned**2).sum(-1), (q**2).sum(-1) * rope.magnitude**2)
    t.say("keys that are split among two programs and merged give the same row")


def seen(program: Program, size: int, *operands: Array, **attributes: Any) -> Array:
    """Returns where a mask program keeps a score, as a matrix of `size` queries and keys."""
    at = {"causal": False, "window": 0, "softcap": 0.0, **attributes}
    place = Place(np.arange(size)[:, None], np.arange(size)[None, :], size)
    held = [
        spread(np, axes, x, 1, 1, np.dtype(np.float32))
        for axes, x in zip(program.operands.values(), operands, strict=True)
    ]
    scores = scored(np, program, np.zeros((1, 1, 1, size, size)), place, held, at)
    return scores[0, 0, 0] == 0


def written_out(q: Array, k: Array, v: Array) -> Array:
    """Causal attention by the formula: all scores in memory."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


# ---- scans


def tell_scan(t: Teller) -> None:
    """Prints algorithms for one scan, chunked recurrences, and the memory that each takes."""
    n = 4096
    values = (np.random.default_rng(0).uniform(0.5, 1, n), drawn(n).astype(np.float64))
    rows: list[list[object]] = []
    expected = FORMS["sequential"](gate_combine, values, Count())[1]
    for name, form in FORMS.items():
        count = Count()
        t.check(name, form(gate_combine, values, count)[1], expected)
        rows.append([name, count.steps, count.combinations])
    t.say(f"h[t] = a[t] h[t-1] + x[t], {n} steps, in five forms that give the same:")
    t.say(table(["form", "steps in a row", "combinations"], rows))

    steps, width = 2048, 64
    q, k, v = (drawn(1, steps, width, seed=s, scale=width**-0.5) for s in range(3))
    gate = -np.abs(drawn(1, steps, width, seed=3, scale=0.1))
    first = np.zeros((1, width, width), np.float32)
    arrays = [q, k, v, gate, first]
    expected = find("scan.gla")(*arrays)[0]
    made = called("scan.gla", *arrays)
    error = t.check("chunks", made.run(arrays)[0], expected)
    ratio = median(lambda: find("scan.gla")(*arrays), 3) / median(lambda: made.run(arrays))
    t.say(
        f"gated linear attention, {steps} steps: in chunks of 16, {len(made.kernels)} kernels,"
        f" error {error:.1e}; step by step NumPy takes {ratio:.1f}x as long"
    )
    tell_memory(t)


def tell_memory(t: Teller) -> None:
    """Prints bytes of intermediates and results of one layer, as planned and as measured."""
    found: dict[str, list[float]] = {}
    seen: list[list[object]] = []
    for n in LENGTHS:
        channels, states = 64, 16
        shapes = [(n, channels)] * 2 + [(channels, states)] + [(n, states)] * 2
        scan = function("scan.selective", [*shapes, (channels,), (channels, states)], "f32 " * 7)
        loop = function("attention.attention", [(1, n, channels)] * 3, "f32 f32 f32", causal=True)
        results = 4.0 * (n * channels + channels * states)
        planned = {ATTENTION: (loop, built(loop)), SCAN: (scan, built(scan))}
        for name, held in {
            "attention, scores in memory": 4.0 * (n * n + n * channels),
            **{name: held_by(*pair) for name, pair in planned.items()},
            "selective scan, states in registers (kernel by hand)": results,
        }.items():
            found.setdefault(name, []).append(held / 1e6)
        if n <= MEASURED:
            seen += [[n, name, *_against_plan(*pair)] for name, pair in planned.items()]
    rows = [[name, *(f"{x:.4g}" for x in held)] for name, held in found.items()]
    t.say("\nmegabytes besides the operands, by tokens, as the compiler plans them:")
    t.say(table(["", *map(str, LENGTHS)], rows))
    t.say("and what a call adds to the process:")
    t.say(table(["tokens", "", "planned MB", "measured MB"], seen))
    t.draw("memory", lines, LENGTHS, found, x="tokens", y="MB besides operands")


def _against_plan(func: Func, made: Executable) -> tuple[str, str]:
    arrays = [drawn(*map(int, p.shape), scale=0.1) for p in func.params]
    held = measured(made, arrays)
    return f"{held_by(func, made) / 1e6:.4g}", "-" if held is None else f"{held / 1e6:.4g}"


# ---- norms and losses


def tell_norm(t: Teller) -> None:
    """Prints and checks that a norm is one pass over memory with sums in f32."""
    x, weight = drawn(4096, 1024), drawn(1024, seed=1)
    made = called("norm.rms_norm", x, weight)
    error = t.check("rms_norm", made.run([x, weight])[0], find("norm.rms_norm")(x, weight))

    def in_parts() -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6)) * weight

    ours, parts = median(lambda: made.run([x, weight])), median(in_parts)
    moved = bytes_of([x, x, weight])
    t.say(
        f"{len(made.kernels)} kernel, {moved / 1e6:.0f} MB moved at {moved / ours / 1e9:.1f} GB/s;"
        f" NumPy op by op takes {parts / ours:.1f}x as long; error {error:.1e}"
    )
    half = (x * 8).astype(np.float16)
    exact = find("norm.rms_norm")(half.astype(np.float64), weight.astype(np.float64))
    narrow = half / np.sqrt((half * half).mean(-1, keepdims=True)) * weight.astype(np.float16)
    wide = find("norm.rms_norm")(half, weight.astype(np.float16))
    errors = {
        "sums in f32": float(np.abs(wide - exact).max()),
        "squares in f16": float(np.abs(narrow - exact).max()),
    }
    t.say("f16 rows: " + ", ".join(f"{n} are off by {e:.1e}" for n, e in errors.items()))
    t.draw("norm", bars, {"ours": ours * 1e3, "NumPy": parts * 1e3}, y="milliseconds")


def tell_loss(t: Teller) -> None:
    """Prints how the loss over a large vocabulary avoids materialized logits; checks it."""
    rows, width, classes = 512, 256, 32000
    x, weight = drawn(rows, width, scale=0.1), drawn(classes, width, seed=1, scale=0.1)
    target = np.random.default_rng(2).integers(0, classes, rows).astype(np.int32)
    arrays = [x, weight, target]
    made = called("loss.linear_cross_entropy", *arrays)
    expected = find("loss.linear_cross_entropy")(*arrays)  # one tile of classes at a time
    error = t.check("loss", made.run(arrays)[0], expected)
    held = {
        "logits": 4 * rows * classes / 1e6,
        "compiled": (made.peak_bytes or 0) / 1e6,
        "a tile": 4 * rows * TILE / 1e6,
    }
    t.say(
        f"{rows} rows, {classes} classes: logits are {held['logits']:.1f} MB; compiled for this"
        f" CPU, by what it prices, {held['compiled']:.1f} MB; a tile of {TILE} classes, as the"
        f" reference and the kernel for GPUs go, {held['a tile']:.1f} MB; error {error:.1e}"
    )
    t.draw("loss", bars, held, y="MB")


STORIES = {
    "attention": tell_attention,
    "scan": tell_scan,
    "norm": tell_norm,
    "loss": tell_loss,
    "qgemm": tell_qgemm,
    "moe": tell_moe,
    "lora": tell_lora,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns exit code 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m stack.demos.ops", description=__doc__)
    parser.add_argument("family", nargs="*", help=f"of {', '.join(STORIES)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="folder of pictures")
    args = parser.parse_args(argv)
    if not set(args.family) <= set(STORIES):
        parser.error(f"families are {', '.join(STORIES)}")
    t = Teller(args.output)
    for name in args.family or STORIES:
        begin = time.perf_counter()
        t.say(f"\n==== {name}: {STORIES[name].__doc__}\n")
        STORIES[name](t)
        t.say(f"({time.perf_counter() - begin:.0f} s)")
    t.say("\n" + ("\n".join(t.wrong) or "all results agree"))
    return 1 if t.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
