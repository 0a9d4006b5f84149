"""Stories of matmuls: quantized weights, experts, low-rank additions."""

from __future__ import annotations

import numpy as np

from stack.demos.ops_pictures import bars
from stack.demos.ops_teller import Teller, called, drawn
from stack.explore.table import table
from stack.hosted import find
from stack.hosted.calibration import Product, find_calibrator

Array = np.ndarray
GROUP = 64
WAYS = (
    *("w8a8_dynamic", "w8a8_dynamic:smoothquant", "q8_0", "w4a16", "w4a16:awq", "w4a16:gptq"),
    *("w4a16:hadamard+gptq", "nf4", "mx", "nvfp4"),
)


def tell_qgemm(t: Teller) -> None:
    """Prints matmul errors by number of weight bits, and how much calibration recovers."""
    rows, k, n = 512, 256, 512
    weight = drawn(n, k)
    mixed = drawn(k // 8, k, seed=1)
    x = drawn(2 * rows, k // 8, seed=2) @ mixed + drawn(2 * rows, k, seed=3)
    x[:, ::64] *= 20  # a few channels are large, as in trained models
    sample, x = x[:rows], x[rows:]
    exact = x.astype(np.float64) @ weight.T
    lines: list[list[object]] = []
    errors: dict[str, float] = {}
    for way in WAYS:
        scheme, _, names = way.partition(":")
        product = Product(find(f"qgemm.{scheme}"), GROUP, sample, weight)
        for name in filter(None, names.split("+")):
            product = find_calibrator(f"qgemm.{name}")(product)
        turned = x
        for turn in product.turns:
            turned = turn(np, turned)
        operands = [
            a.astype(np.float32) if a.dtype.kind == "f" else a
            for a in (np.asarray(turned), *product.packed())
        ]
        found = called(product.scheme.name, *operands).run(operands)[0]
        t.check(way, found, product.scheme(*operands))
        errors[way] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        bits = 8 * sum(a.nbytes for a in operands[1:]) / weight.size
        lines.append([way, f"{bits:.2f}", f"{errors[way]:.2%}"])
    t.say(
        f"x {list(x.shape)}, of which {k // 64} channels are large, by weights {list(weight.shape)}"
    )
    t.say("in groups of 64; calibrators saw other rows than those that are measured:\n")
    t.say(table(["scheme", "bits a weight", "error"], lines))
    t.draw("qgemm", bars, {w.replace(":", "\n"): 100 * e for w, e in errors.items()}, y="error, %")


def tell_moe(t: Teller) -> None:
    """Prints how tokens are sorted by expert, so that each expert's rows are contiguous."""
    tokens, width, inner, experts, top = 256, 64, 128, 8, 2
    x, weight = drawn(tokens, width), drawn(experts, inner, width, seed=1, scale=width**-0.5)
    scores = drawn(tokens, experts, seed=2)
    top_k, plan, dispatch, grouped, combine = (
        find(f"moe.{n}") for n in ("top_k", "plan", "dispatch", "grouped_gemm", "combine")
    )
    gates = top_k(scores, top=top)
    places, sizes = plan(gates, np.full(tokens * top, -1, np.int32))
    rows = dispatch(x, places)
    made = called("moe.grouped_gemm", rows, weight, sizes)
    found = combine(made.run([rows, weight, sizes])[0], gates, places, sizes)
    every = np.einsum("tk,enk->ten", x, weight)
    error = t.check("moe", found, np.einsum("te,ten->tn", gates, every))
    t.say(f"{tokens} tokens, {top} of {experts} experts each: rows of experts {sizes.tolist()}")
    t.say(
        f"2 x {tokens * top} x {width} x {inner} operations in place of {experts // top} times as"
        f" many; error against all experts, weighed by their gates: {error:.1e}"
    )
    t.draw("moe", bars, {str(e): float(s) for e, s in enumerate(sizes)}, y="rows of an expert")


def tell_lora(t: Teller) -> None:
    """Prints the costs of two low-rank matmuls in both orders, and checks the results."""
    rows, k, n, rank = 64, 1024, 1024, 8
    x, weight = drawn(rows, k), drawn(n, k, seed=1, scale=k**-0.5)
    a, b = drawn(rank, k, seed=2, scale=k**-0.5), drawn(n, rank, seed=3)
    made = called("lora.linear", x, weight, a, b)
    found = made.run([x, weight, a, b])[0]
    error = t.check("lora", found, x @ (weight + b @ a).T)
    after, before = rank * (k + n), k * n * rank / rows + k * n / rows
    t.say(f"{rank * (k + n)} numbers learn in place of {k * n}; error {error:.1e}")
    t.say(
        f"beside the product with W, (x A^T) B^T takes {after / (k * n):.1%} of its operations,"
        f" B A first and added to W {before / (k * n):.1%}"
    )
    learn = {"W": k * n / 1e3, "A and B": rank * (k + n) / 1e3}
    t.draw("lora", bars, learn, y="thousand numbers that learn")
