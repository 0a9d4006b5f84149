"""Products on GPUs: the list of steps of each kind."""

from __future__ import annotations

import pytest
from kernel_cases import in_blocks

from stack.ir import Builder, Node, param, tensor
from stack.passes.policies.products import Products
from stack.passes.tile import CannotTile
from stack.passes.tiling.single_ops import alone
from stack.target import load

GPU = load("sm_90")


def matmul(rule: str, left: tuple[int, ...], right: tuple[int, ...], dtype: str = "bf16") -> Node:
    """A group of one product."""
    a, b = param("a", tensor(dtype, *left)), param("b", tensor(dtype, *right))
    return alone(Builder().dot(a, b, rule=rule))


def steps(group: Node, **blocks: int) -> list[str]:
    """The texts of the steps of a group."""
    group = in_blocks(group, **blocks) if blocks else group
    return [text for text, _, _ in Products(group, GPU).made().done][1:]


def test_a_matrix_product() -> None:
    group = matmul("m k, k n -> m n", (1024, 512), (512, 768))
    assert steps(group, m=128, n=256, k=64) == [
        "split k 64",
        "split i 128",
        "split j 256",
        "vectorize k.1",
        "vectorize j.1",
        "vectorize i.1",
        "tensorize",
        "bind i.0 grid",
        "bind j.0 grid",
        "rasterize j.0 8",
        "launch 8 stages=3",
    ]


def test_a_short_sum_has_no_loop() -> None:
    found = steps(matmul("m k, k n -> m n", (1024, 128), (128, 768)), m=64, n=64, k=64)
    assert found[0] == "split k 128"
    assert not any("k.0" in text for text in found)


def test_operands_that_are_rounded_keep_the_depth_of_their_tile() -> None:
    """All 256 products of a sum at once would take 327 kB of shared memory."""
    a, b = param("a", tensor("f32", 1024, 256)), param("b", tensor("f32", 256, 256))
    group = alone(Builder().dot(a, b, rule="m k, k n -> m n", precision="tf32"))
    assert steps(group, m=64, n=256, k=32)[0] == "split k 32"


def test_a_product_of_a_vector_has_partial_sums() -> None:
    found = steps(matmul("m k, n k -> m n", (1, 4096), (512, 4096)), n=8, k=512)
    assert "tensorize" not in found
    assert [t for t in found if "k.0" in t] == ["rfactor k.0", "pipeline k.0 3 through=shared"]


def test_batches_are_programs() -> None:
    """Axes that a tile does not have come first in the grid, wherever the result has them."""
    found = steps(matmul("m b k, b k n -> m b n", (96, 4, 512), (4, 512, 64)), m=32, n=32, k=64)
    assert found[0] == "reorder i j"
    assert [t for t in found if t.startswith("bind")] == [
        "bind j grid",
        "bind i.0 grid",
        "bind k.0 grid",
    ]


def test_several_contracted_axes_become_one() -> None:
    found = steps(matmul("b s h d, n h d -> b s n", (2, 40, 4, 64), (40, 4, 64)), m=32, n=32, k=64)
    assert found[0] == "fuse h d"


def test_the_last_contracted_axis_fills_an_instruction() -> None:
    with pytest.raises(CannotTile, match="the last of 8 elements"):
        steps(matmul("s h d, n h d -> s n", (40, 4, 8), (40, 4, 8)))


def test_tf32_is_rounded_by_the_instruction() -> None:
    a, b = param("a", tensor("f32", 64, 256)), param("b", tensor("f32", 256, 64))
    group = alone(Builder().dot(a, b, rule="m k, k n -> m n", precision="tf32"))
    assert "tensorize precision=tf32" in steps(group)
    assert "tensorize" in steps(matmul("m k, k n -> m n", (64, 256), (256, 64), "f32"))
