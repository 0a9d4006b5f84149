"""pad_rows on a CPU: products that no instruction divides get zeros, others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_cases import Kept, Rewrites, func

import stack
from stack.rewrite import Pipeline
from stack.rewrite.truth import Truth
from stack.target import load

torch = pytest.importorskip("torch")


SHORT = load("avx512")  # with instructions for bf16 and i8
WIDER = "interior=[0, 0], low=[0, 0]"
REWRITES: Rewrites = {
    "an odd depth": (
        "%x: bf16[5, 33], %y: bf16[33, 32]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : bf16[5, 32]',
        f"%a = pad(%x, 0.0:bf16) {{high=[0, 1], {WIDER}}} : bf16[5, 34]\n"
        f"%b = pad(%y, 0.0:bf16) {{high=[1, 0], {WIDER}}} : bf16[34, 32]\n"
        '%z = dot(%a, %b) {rule="m k, k n -> m n"} : bf16[5, 32]',
    ),
    "few columns": (
        "%x: bf16[40, 6], %y: bf16[3, 6]",
        '%z = dot(%x, %y) {rule="m k, n k -> m n"} : f32[40, 3]',
        f"%b = pad(%y, 0.0:bf16) {{high=[13, 0], {WIDER}}} : bf16[16, 6]\n"
        '%p = dot(%x, %b) {rule="m k, n k -> m n"} : f32[40, 16]\n'
        "%z = slice(%p) {limit=[40, 3], start=[0, 0], step=[1, 1]} : f32[40, 3]",
    ),
    "one group is none": (
        "%x: bf16[40, 2], %y: bf16[2, 16]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : bf16[40, 16]',
        f"%a = pad(%x, 0.0:bf16) {{high=[0, 2], {WIDER}}} : bf16[40, 4]\n"
        f"%b = pad(%y, 0.0:bf16) {{high=[2, 0], {WIDER}}} : bf16[4, 16]\n"
        '%z = dot(%a, %b) {rule="m k, k n -> m n"} : bf16[40, 16]',
    ),
    "a last axis of one group beside a longer one": (
        "%w: bf16[5, 8, 2], %x: bf16[8, 16, 2]",
        '%z = dot(%w, %x) {rule="o c t, c p t -> o p"} : bf16[5, 16]',
        "%a = transpose(%w) {perm=[0, 2, 1]} : bf16[5, 2, 8]\n"
        '%z = dot(%a, %x) {rule="o t c, c p t -> o p"} : bf16[5, 16]',
    ),
    "integers": (
        "%x: i8[40, 7], %y: i8[7, 16]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : i32[40, 16]',
        f"%a = pad(%x, 0:i8) {{high=[0, 1], {WIDER}}} : i8[40, 8]\n"
        f"%b = pad(%y, 0:i8) {{high=[1, 0], {WIDER}}} : i8[8, 16]\n"
        '%z = dot(%a, %b) {rule="m k, k n -> m n"} : i32[40, 16]',
    ),
}
KEPT: Kept = {
    "what an instruction divides": (
        "%x: bf16[5, 34], %y: bf16[34, 32]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : bf16[5, 32]',
    ),
    "no instruction": (
        "%x: f32[5, 33], %y: f32[33, 32]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : f32[5, 32]',
    ),
    "one row along columns": (
        "%x: bf16[1, 33], %y: bf16[32, 33]",
        '%z = dot(%x, %y) {rule="m k, n k -> m n"} : bf16[1, 32]',
    ),
    "rows that lie across": (
        "%x: bf16[33, 5], %y: bf16[33, 32]",
        '%z = dot(%x, %y) {rule="k m, k n -> m n"} : bf16[5, 32]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    params, before, after = REWRITES[name]
    program = func(params, before)
    made = Pipeline("pad_rows").run(program, check=True, target=SHORT).func
    want = func(params, after)
    assert made.results == want.results, f"{made}\n{want}"
    assert Truth(program).problem(made) == ""
    assert Pipeline("pad_rows").run(made, target=SHORT).func is made


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    program = func(*KEPT[name])
    assert Pipeline("pad_rows").run(program, target=SHORT).func is program


@pytest.mark.parametrize("name", REWRITES)
def test_a_cpu_without_instructions_keeps_all(name: str) -> None:
    program = func(*REWRITES[name][:2])
    assert Pipeline("pad_rows").run(program, target=load("avx2")).func is program


SIZES = [(1, 1, 1), (3, 3, 3), (7, 13, 5), (65, 31, 17), (257, 33, 15), (16, 2, 16), (5, 129, 1)]


@pytest.mark.parametrize("m, k, n", SIZES)
@pytest.mark.parametrize("rule", ["bmk,bkn->bmn", "bmk,bnk->bmn", "bkm,bkn->bnm"])
def test_values(m: int, k: int, n: int, rule: str) -> None:
    sizes = {"b": 3, "m": m, "k": k, "n": n}
    operands = rule.split("->")[0].split(",")
    x, y = (torch.randn([sizes[a] for a in o]).bfloat16() for o in operands)

    def program(x: Any, y: Any) -> Any:
        """A product, with what follows it."""
        return torch.relu(torch.einsum(rule, x, y)) + 1

    got = stack.compile(program, x, y)(x, y).double().numpy()
    exact = np.einsum(rule, x.double().numpy(), y.double().numpy())
    size = np.einsum(rule, abs(x.double().numpy()), abs(y.double().numpy()))
    assert np.all(abs(got - (np.maximum(exact, 0) + 1)) <= 2.0**-7 * (1 + size))


@pytest.mark.parametrize("channels, size", [(64, 28), (3, 14), (5, 4), (1, 32)])
def test_patches_with_channels_second(channels: int, size: int) -> None:
    x = torch.randn(2, channels, size, size).bfloat16()
    w = torch.randn(9, channels, 2, 2).bfloat16()

    def program(x: Any, w: Any) -> Any:
        """Windows that do not overlap."""
        return torch.nn.functional.conv2d(x, w, stride=2)

    got, exact = stack.compile(program, x, w)(x, w), program(x.double(), w.double())
    bound = 2.0**-7 * program(x.double().abs(), w.double().abs())
    assert got.stride() == program(x, w).stride()
    assert bool(((got.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_zeros_meet_nothing_that_is_not_finite(special: float) -> None:
    x, y = torch.ones(4, 5).bfloat16(), torch.ones(5, 3).bfloat16()
    x[2, 4] = special
    got = stack.compile(torch.matmul, x, y)(x, y).float()
    np.testing.assert_equal(got[2].numpy(), np.full(3, special, np.float32))
    np.testing.assert_equal(got[[0, 1, 3]].numpy(), np.full((3, 3), 5, np.float32))


def test_no_library_is_left() -> None:
    x, y = torch.ones(65, 31).bfloat16(), torch.ones(31, 7).bfloat16()
    compiled = stack.compile(torch.matmul, x, y)
    assert not compiled.run.coverage["library"]
