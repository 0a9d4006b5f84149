"""k_major: matmuls over several axes read both operands in one order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
GPU = as_gpu(None)
PREPARED = "canonicalize,fold,decompose{gpu=true},canonicalize,layout,canonicalize"
TEXT = """func @f(%x: bf16[{image}], %w: bf16[{weight}]) -> (bf16[224, 14, 64]) at tensor {{
  %y = dot(%x, %w) {{rule="{rule} -> n p o"}} : bf16[224, 14, 64]
  return %y
}}
"""
IMAGE, WEIGHT = "224, 8, 14, 8, 64", "64, 64, 8, 8"
BEFORE = TEXT.format(image=IMAGE, weight=WEIGHT, rule="n s p t c, o c s t")
EXPECTED = f"""func @f(%x: bf16[{IMAGE}], %w: bf16[{WEIGHT}]) -> (bf16[224, 14, 64]) at tensor {{
  %transpose = transpose(%w) {{perm=[0, 2, 3, 1]}} : bf16[64, 8, 8, 64]
  %y = dot(%x, %transpose) {{rule="n s p t c, o s t c -> n p o"}} : bf16[224, 14, 64]
  return %y
}}
"""


def ordered(text: str) -> Func:
    return Pipeline("k_major").run(parse(text), target=GPU, check=True).func


def test_the_weight_gets_the_order_of_the_image() -> None:
    made = ordered(BEFORE)
    assert str(made) == EXPECTED
    assert ordered(str(made)) is made


def test_operands_may_change_sides() -> None:
    text = BEFORE.replace("n s p t c, o c s t", "o c s t, n s p t c").replace(
        "(%x, %w)", "(%w, %x)"
    )
    (dot,) = (n for n in ordered(text).nodes if n.op == "dot")
    assert dot.attrs["rule"] == "o s t c, n s p t c -> n p o"


@pytest.mark.parametrize(
    ("image", "weight", "rule"),
    [
        (IMAGE, "64, 8, 8, 64", "n s p t c, o s t c"),  # one order
        ("224, 14, 64", "64, 64", "n p c, c o"),  # one contracted axis
        ("224, 14, 8, 8, 64", WEIGHT, "n p s t c, o c s t"),  # a library copies the weight, too
        ("224, 64, 8, 14, 8", "64, 8, 8, 64", "n c s p t, o s t c"),  # runs of 8 elements
    ],
)
def test_what_stays(image: str, weight: str, rule: str) -> None:
    text = TEXT.format(image=image, weight=weight, rule=rule)
    assert ordered(text) is parse(text)


class Reduction(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Keys of a vision transformer whose images are made smaller by a convolution."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(width, width, size, size)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: Tensor, side: int) -> Tensor:
        count, _, width = x.shape
        y = self.conv(x.permute(0, 2, 1).reshape(count, width, side, side))
        return self.norm(y.reshape(count, width, -1).permute(0, 2, 1))


@pytest.mark.parametrize(("width", "size", "side"), [(64, 8, 56), (64, 4, 28), (32, 2, 28)])
def test_a_kernel_reads_the_image_in_place(width: int, size: int, side: int) -> None:
    layer = Reduction(width, size).to("meta", torch.bfloat16).requires_grad_(False)
    x = torch.empty(16, side * side, width, dtype=torch.bfloat16, device="meta")
    steps = f"{PREPARED},k_major,fuse,coalesce,schedule,blocks,library"
    made = Pipeline(steps).run(stack.trace(lambda x: layer(x, side), x), target=GPU).func
    assert not any(n.op == "fusion" for n in made.nodes)
    copies = [n for n in made.nodes if n.op == "kernel" and n.attrs["name"] == "transpose"]
    assert [int(n.tensor.size) for n in copies] == [width * width * size * size]


@pytest.mark.parametrize("first", ["", "k_major,"])
def test_without_it_a_library_copies_the_image(first: str) -> None:
    steps = f"{first}fuse,coalesce,schedule,blocks,library"
    made = Pipeline(steps).run(parse(BEFORE), target=GPU).func
    assert any(n.op == "fusion" for n in made.nodes) == (not first)


def test_values(rng: np.random.Generator) -> None:
    x, w = (
        rng.standard_normal([int(n) for n in shape.split(", ")]).astype(np.float32)
        for shape in ("6, 2, 3, 2, 16", "5, 16, 2, 2")
    )
    text = BEFORE.replace(IMAGE, "6, 2, 3, 2, 16").replace(WEIGHT, "5, 16, 2, 2")
    func = parse(text.replace("224, 14, 64", "6, 3, 5").replace("bf16", "f32"))
    made = Pipeline("k_major,fuse,coalesce,blocks").run(func, target=GPU).func
    assert [n.op for n in made.nodes].count("kernel") == 2
    want = np.einsum("nsptc,ocst->npo", x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_allclose(made.interpret(x, w), want, rtol=1e-5, atol=1e-5)
