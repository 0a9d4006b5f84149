"""Products of 8-bit codes: what there is no code for, bad scales by name, values on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from stack.errors import RuleError
from stack.hosted import Op
from stack.ir.types import DTYPES, TensorType
from stack.ops.gemm.tiles import Config
from stack.ops.qgemm import fp8, fp8_block, fp8_tensor, gemm8_gluon, w8a8, w8a8_dynamic


def types(*each: tuple[str, tuple[int, ...]]) -> list[TensorType]:
    return [TensorType(DTYPES[d], s) for d, s in each]


def test_what_it_has_no_code_for() -> None:
    def why_not(n: int, k: int, format: str = "e4m3", block: int = 128) -> str:
        operands = ("u8", (3, k)), ("u8", (n, k)), ("f32", (3, 1)), ("f32", (1, 1))
        kernel = fp8_block.kernels[0]
        return kernel.why_not(types(*operands), {"format": format, "block": block})

    assert why_not(24, 48) == ""
    assert why_not(20, 48) == why_not(24, 40) == "rows are not multiples of 16 bytes"
    assert why_not(24, 48, format="e5m2") == why_not(24, 48, block=64)


@pytest.mark.parametrize(
    ("op", "shapes", "told"),
    [
        (fp8, ((3, 32), (8, 16), (3,), (8,)), "axis 'k'.*'weight'"),
        (fp8, ((3, 32), (8, 32), (4,), (8,)), "'x_scale'"),
        (fp8, ((3, 32), (8, 32), (3,), (9,)), "axis 'n'.*'weight_scale'"),
        (fp8_tensor, ((3, 32), (8, 32), (1,), ()), "'x_scale'"),
        (fp8_block, ((3, 160), (8, 160), (3, 1), (1, 1)), "'x_scale' has a size of 1, not 2"),
        (fp8_block, ((3, 160), (8, 160), (3, 2), (1, 1)), "axis 'g'.*'weight_scale'"),
        (fp8_block, ((3, 160), (8, 160), (3, 2), (2, 2)), "'weight_scale' has a size of 2, not 1"),
        (w8a8, ((3, 32), (8, 32), (3,), (8, 1)), "'weight_scale'"),
    ],
)
def test_scales_that_do_not_fit_are_refused_by_name(
    op: Op, shapes: tuple[tuple[int, ...], ...], told: str
) -> None:
    codes = torch.int8 if op is w8a8 else torch.uint8
    arrays = [torch.zeros(s, dtype=codes if i < 2 else torch.float32) for i, s in enumerate(shapes)]
    with pytest.raises(RuleError, match=told):
        op(*arrays)


def draw(op: Op, rows: int, columns: int, depth: int) -> list[Any]:
    """Operands on the GPU."""
    scale = lambda *shape: torch.rand(shape, device="cuda") + 0.5
    if op is w8a8:
        codes = [torch.randint(-127, 128, (n, depth), device="cuda") for n in (rows, columns)]
        return [*(c.to(torch.int8) for c in codes), scale(rows), scale(columns)]
    codes = [torch.randn(n, depth, device="cuda") for n in (rows, columns)]
    blocks = -(-depth // 128)
    scales = {
        "qgemm.fp8": ((rows,), (columns,)),
        "qgemm.fp8_tensor": ((), ()),
        "qgemm.fp8_block": ((rows, blocks), (-(-columns // 128), blocks)),
    }[op.name]
    bytes_ = [c.to(torch.float8_e4m3fn).view(torch.uint8) for c in codes]
    return [*bytes_, *(scale(*s) for s in scales)]


@pytest.mark.gpu
@pytest.mark.parametrize("op", [fp8, fp8_tensor, fp8_block, w8a8], ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 8, 16), (100, 136, 144), (512, 640, 1024), (3000, 1544, 400)]
)
def test_values_on_a_gpu(op: Op, rows: int, columns: int, depth: int) -> None:
    """Tiles that are not full, several to a program, sums that programs share."""
    operands = draw(op, rows, columns, depth)
    exact = op(*(o.double().cpu() if o.is_floating_point() else o.cpu() for o in operands))
    for config in (None, *(Config(c, splits) for c in (64, 128, 256) for splits in (1, 3))):
        found = gemm8_gluon.product(*operands, config=config).double().cpu()
        assert float((found - exact).norm() / exact.norm()) < 1e-3, config


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 300])
def test_rows_that_are_rounded_at_each_call(rows: int) -> None:
    x = torch.randn(rows, 1040, device="cuda").bfloat16()
    weight = torch.randint(-127, 128, (72, 1040), device="cuda", dtype=torch.int8)
    scale = torch.rand(72, device="cuda").bfloat16()
    exact = w8a8_dynamic(x.double().cpu(), weight.cpu(), scale.double().cpu())
    found = w8a8_dynamic(x, weight, scale).double().cpu()
    assert float((found - exact).norm() / exact.norm()) < 5e-3
