"""RMSNorm in TileLang, a language of tiles on TVM: one block normalizes one row."""

# pyright: reportInvalidTypeForm=false
# TileLang evaluates the annotations of kernels, so they are not postponed here.
from functools import cache
from typing import Any

import tilelang  # pyright: ignore[reportMissingImports]
import tilelang.language as T  # pyright: ignore[reportMissingImports]
import torch

Tensor = torch.Tensor
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@cache
def _kernel(columns: int, dtype: str, eps: float) -> Any:
    rows = T.dynamic("rows")

    @T.prim_func
    def rms(
        x: T.Tensor((rows, columns), dtype),
        weight: T.Tensor((columns,), dtype),
        y: T.Tensor((rows, columns), dtype),
    ):
        with T.Kernel(rows, threads=256) as row:
            wide = T.alloc_fragment((1, columns), "float32")
            squares = T.alloc_fragment((1, columns), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[row : row + 1, :], wide)
            for i, j in T.Parallel(1, columns):
                squares[i, j] = wide[i, j] * wide[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(1):
                scale[i] = 1 / T.sqrt(scale[i] / columns + eps)
            for i, j in T.Parallel(1, columns):
                wide[i, j] = wide[i, j] * scale[i] * T.cast(weight[j], "float32")
            T.copy(wide, y[row : row + 1, :])

    return tilelang.compile(rms, out_idx=[2], target="cuda")


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Compiles a kernel for each width of rows, element type and `eps`."""
    run = _kernel(x.shape[-1], NAMES[x.dtype], eps)
    return run(x.view(-1, x.shape[-1]), weight).view_as(x)
