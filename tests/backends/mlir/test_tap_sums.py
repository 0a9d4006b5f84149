"""Windows of single channels that share places: values against f64, and what is read how often."""

from __future__ import annotations

import re
from typing import Any

import pytest
from executed import needs_avx512

import stack

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
nn = torch.nn

# a module of single channels, and the shape of its image
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "7x7": (nn.Conv2d(48, 48, 7, 1, 3, groups=48), (2, 48, 9, 29)),
    "higher than wide": (nn.Conv2d(16, 16, 5, 1, 2, groups=16), (1, 16, 31, 6)),
    "with a stride": (nn.Conv2d(40, 40, (5, 7), (1, 2), 2, groups=40), (1, 40, 11, 38)),
    "dilated": (nn.Conv2d(24, 24, 5, 1, 4, (1, 2), groups=24), (1, 24, 12, 23)),
    "a stride that taps skip": (nn.Conv2d(16, 16, 5, 2, 2, 3, groups=16), (1, 16, 25, 40)),
    "a row in runs of taps, and a rest": (nn.Conv1d(32, 32, 31, 1, 15, groups=32), (2, 32, 61)),
    "a run and a rest": (nn.Conv1d(16, 16, 9, groups=16), (1, 16, 30)),
    "in blocks": (nn.Conv1d(16, 16, 700, groups=16), (1, 16, 720)),
    "windows that touch": (nn.Conv2d(16, 16, 6, 6, groups=16), (1, 16, 30, 30)),
    "a part of a vector": (nn.Conv2d(5, 5, 7, 1, 3, groups=5), (2, 5, 8, 9)),
    "of a volume": (nn.Conv3d(16, 16, 4, 1, (1, 0, 2), groups=16), (1, 16, 5, 6, 7)),
}


def compiled_with(module: Any, x: Any, target: str | None) -> tuple[Any, Any, Any]:
    """The compiled module, its result, and that in f64; channels are last in memory."""
    if x.ndim > 3:
        order = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
        x, module = x.to(memory_format=order), module.to(memory_format=order)
    dtype = x.dtype
    with torch.no_grad():
        options: dict[str, Any] = {"target": target} if target else {}
        compiled = stack.compile(module.to(dtype), x, backend="mlir", **options)
        got = compiled(x)
        expected = module.double()(x.double())
        module.float()
    return compiled, got.double(), expected


@pytest.mark.each
@pytest.mark.parametrize("target", [None, "avx2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: Any, target: str | None) -> None:
    module, shape = CASES[name]
    with torch.no_grad():
        module.to(dtype).float()  # weights that both types have
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    _, got, expected = compiled_with(module, x, target)
    slack = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=slack, atol=slack)


def test_numbers_that_are_none_stay_in_the_windows_that_cover_them() -> None:
    module = nn.Conv2d(32, 32, 7, padding=3, groups=32, bias=False)
    x = torch.ones(1, 32, 12, 30)
    x[0, 3, 5, 8], x[0, 20, 11, 29] = torch.inf, torch.nan
    _, got, expected = compiled_with(module, x, None)
    assert (got.isfinite() == expected.isfinite()).all()
    assert (got.isnan() == expected.isnan()).all()
    assert not got.isfinite().all()


@needs_avx512
def test_a_place_is_read_once_for_all_taps_of_a_row() -> None:
    """14 windows of 7 taps cover 20 places; those that only touch share none."""
    module = nn.Conv2d(16, 16, 7, padding=3, groups=16, bias=False)
    compiled, *_ = compiled_with(module, torch.randn(1, 16, 28, 28), "avx512")
    body = compiled.run["mlir"].text.split("@kernel_dot_body(%table: !llvm.ptr, %lo")[1]
    assert body.count("llvm.intr.fmuladd") == 14 * 7
    start = body.index("iter_args")
    row = body[start : body.index("scf.yield", start)]
    assert len(re.findall(r"llvm\.load .*vector<16xf32>", row)) == 20 + 7

    module = nn.Conv2d(16, 16, 7, 7, groups=16, bias=False)
    compiled, *_ = compiled_with(module, torch.randn(1, 16, 196, 196), "avx512")
    body = compiled.run["mlir"].text.split("@kernel_dot_body(%table: !llvm.ptr, %lo")[1]
    assert body.count("llvm.intr.fmuladd") < 14 * 7


@needs_avx512
def test_axes_that_are_one_run_on_both_sides_are_one_loop() -> None:
    """Channels of neighbouring taps are contiguous; the next row does not follow, and
    taps that skip pixels do not either."""
    for dilation, loops in ((1, 2), (2, 3)):
        module = nn.Conv2d(3, 16, 3, dilation=dilation, bias=False)
        compiled, got, expected = compiled_with(module, torch.randn(1, 3, 28, 28), "avx512")
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert compiled.run["mlir"].text.count("iter_args") == loops
