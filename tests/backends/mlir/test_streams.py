"""Streams as native loops on a CPU: values against double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed
from stream_inputs import DOT_PROGRAMS, inputs
from stream_variants import HIDDEN, KEPT, LIMITS, VARIANTS, masked, normal, variant_inputs

import stack
from stack.ir import Func
from stack.ir.data import decode, encode
from stack.passes.streaming.price import cpu_price
from stack.run.compile import compile_func
from stack.target import as_cpu

torch = pytest.importorskip("torch")
Tensor = Any


def check(
    program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5, kernels: int | None = 1
) -> None:
    """Compile with all streams that there are, whatever they cost; run twice."""
    func, notes = streamed(prepared(stack.trace(program, *args)), "")
    assert any(n.op == "stream" for n in func.nodes), notes
    executable = compile_func(func, "mlir", options={"cache": False})
    names = [(k.name, k.kind) for k in executable.kernels]
    assert {kind for _, kind in names} == {"generated"}, names
    assert kernels is None or len(names) == kernels, names
    stored = [encode(_array(a), p.dtype) for a, p in zip(args, func.params, strict=True)]
    wide = program(*(a.double() if a.is_floating_point() else a for a in args))
    for _ in range(2):
        found = executable.run(stored)
        for got, want, node in zip(
            found, wide if isinstance(wide, tuple) else (wide,), func.results, strict=True
        ):
            _close(decode(got, node.dtype).astype(np.float64), want.numpy(), rtol)


def _close(got: np.ndarray, want: np.ndarray, rtol: float) -> None:
    largest = float(np.max(np.abs(want[np.isfinite(want)]), initial=1e-30))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * largest)


def _array(a: Tensor) -> np.ndarray:
    return (a.float() if a.dtype == torch.bfloat16 else a).numpy()


@pytest.mark.each
@pytest.mark.parametrize(("name", "sizes"), product(VARIANTS, [(37, 16), (130, 17), (200, 64)]))
def test_variants(name: str, sizes: tuple[int, int], rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import VARIANTS as PROGRAMS

    check(PROGRAMS[name], variant_inputs(name, rng, *sizes))


@pytest.mark.each
@pytest.mark.parametrize(
    ("name", "dtype"), product(["causal", "window", "full", "sigmoid"], ["bfloat16", "float16"])
)
def test_16_bits(name: str, dtype: str, rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import VARIANTS as PROGRAMS

    args = [a.to(getattr(torch, dtype)) for a in variant_inputs(name, rng, 130)]
    # values may be transposed by a kernel of their own
    check(PROGRAMS[name], args, 2e-2 if dtype == "bfloat16" else 3e-3, kernels=None)


@pytest.mark.each
@pytest.mark.parametrize(("name", "sizes"), product(LIMITS, [(90, 197), (256, 128)]))
def test_limits(name: str, sizes: tuple[int, int], rng: np.random.Generator) -> None:
    rows, columns = sizes
    args = [normal(rng, 2, n, 16) for n in (rows, columns, columns)]
    check(masked(LIMITS[name]), args)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["lower", "window", "half a sum", "columns alone"])
def test_large_numbers_limit_the_loop(name: str, rng: np.random.Generator) -> None:
    """Rows that are hidden take the mean over all columns: panels that were left out count."""
    q, k, v = (normal(rng, 2, n, 16) for n in (90, 197, 197))
    for fill in (torch.finfo(torch.float32).min, -1e4):
        check(masked(LIMITS[name], fill), [q, k, v + 10])


def test_rows_without_a_visible_place(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Tensor:
        line = torch.arange(300)
        hidden = (line[None, :] > line[:, None]) | pad[:, None, :]
        return torch.softmax((q @ k.mT).masked_fill(hidden, -1e9), -1) @ v

    pad = torch.zeros(2, 300, dtype=torch.bool)
    pad[1, :100] = True
    q, k, v = (normal(rng, 2, 300, 16) for _ in range(3))
    check(program, [q, k, v + 10, pad])


def test_an_element_and_each_row(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        line = torch.arange(300)
        scores = (q @ k.mT).masked_fill(line[None, :] > line[:, None], HIDDEN)
        rows = torch.nn.functional.pad(scores, (0, 1), value=2.0)
        return torch.softmax(rows, -1)[..., :-1] @ v

    check(program, [normal(rng, 2, 300, 16) for _ in range(3)])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", list(KEPT))
def test_what_may_not_be_left_out(name: str, rng: np.random.Generator) -> None:
    hide, fill = KEPT[name]
    check(masked(hide, fill), [normal(rng, 2, 130, 16) for _ in range(3)])


@pytest.mark.every(2)
@pytest.mark.parametrize("keys", [2, 127, 128, 129, 1000])
def test_numbers_of_keys(keys: int, rng: np.random.Generator) -> None:
    check(masked(lambda i, j: j > i + 500), [normal(rng, 3, n, 24) for n in (65, keys, keys)])


@pytest.mark.parametrize("heads", [False, True])
def test_lengths_of_rows_limit_the_loop(heads: bool, rng: np.random.Generator) -> None:
    """Padding: a length for each row, or for each entry of the batch."""

    def program(q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
        hidden = torch.arange(300)[None, None, :] >= length
        return torch.softmax((q @ k.mT).masked_fill(hidden, HIDDEN), -1) @ v

    args = [normal(rng, 2, n, 16) for n in (130, 300, 300)]
    shape = (2, 1, 1) if heads else (2, 130, 1)
    check(program, [*args, torch.from_numpy(rng.integers(1, 300, shape))])


def test_large_offsets_and_rows_without_an_element(rng: np.random.Generator) -> None:
    q, k, v = (normal(rng, 2, 130, 16) for _ in range(3))

    def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + 1e4, -1) @ v

    check(shifted, [q, k, v], 2e-3)  # scores are known to 1e-3 next to the offset
    check(masked(lambda i, j: j > i - 70), [q, k, v])


def test_infinities_and_nan_stay_in_their_rows(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + added, -1) @ v

    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    added = torch.zeros(130, 130)
    added[3], added[4, 1:], added[5, 7], added[6, 9] = HIDDEN, HIDDEN, math.inf, math.nan
    check(program, [*args, added])


def test_what_follows_and_precedes(rng: np.random.Generator) -> None:
    """Heads that are slices of one product, and merged again; the sum that is kept for later."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x @ w).view(2, 150, 3, 4, 16).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 4
        out = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(2, 150, 64)
        return out * 2 + x, torch.logsumexp(scores, -1)

    check(program, [normal(rng, 2, 150, 64), normal(rng, 64, 192)], kernels=None)


def stream_of(program: Callable[..., Any], args: list[Tensor]) -> Func:
    return streamed(prepared(stack.trace(program, *args)), "")[0]


def test_the_price_decides(rng: np.random.Generator) -> None:
    """Scores that leave the cache cost; so do rows that are done twice, and products in f32."""
    from stack.demos.gpu_attention import causal, full

    def cost(seq: int, width: int, program: Any = full, dtype: Any = torch.float32) -> bool:
        args = [normal(rng, 4, seq, width).to(dtype) for _ in range(3)]
        func = stream_of(program, args)
        price = cpu_price(next(n for n in func.nodes if n.op == "stream"), as_cpu(None))
        return price.streamed < price.unfused

    assert cost(1024, 64)
    assert not cost(66, 66)  # two programs of 64 rows do it twice
    assert not cost(1024, 64, full, torch.float16)  # a library multiplies faster
    assert cost(1024, 64, causal, torch.float16)  # but it does not leave half of it out
    assert cost(1024, 64, full, torch.bfloat16)  # the CPU has an instruction for it


@pytest.mark.every(2)
@pytest.mark.parametrize("name", DOT_PROGRAMS)
def test_programs_agree_whatever_is_chosen(name: str, rng: np.random.Generator) -> None:
    from stream_torch import PROGRAMS

    args = [torch.from_numpy(a) for a in inputs(name, rng)]
    out = stack.compile(PROGRAMS[name], *args, backend="mlir", cache=False)(*args)
    wide = PROGRAMS[name](*(a.double() if a.is_floating_point() else a for a in args))
    pairs = zip(*(o if isinstance(o, tuple) else (o,) for o in (out, wide)), strict=True)
    for got, want in pairs:
        _close(got.double().numpy(), want.numpy(), 1e-5)


def test_results_whose_rows_are_apart_in_memory(rng: np.random.Generator) -> None:
    """An MLP over channels between permutations, as in ConvNeXt: lanes of the kernel are rows of
    the picture, which the result keeps last but one."""

    def program(x: Tensor, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
        h = torch.relu(x.permute(0, 2, 3, 1) @ first) @ second
        return h.permute(0, 3, 1, 2) + y

    x, y = (normal(rng, 1, 8, 40, 40) for _ in range(2))
    check(program, [x, normal(rng, 8, 16), normal(rng, 16, 8), y])
