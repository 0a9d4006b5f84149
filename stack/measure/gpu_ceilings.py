"""Ceilings of this GPU, measured in the same run as everything else."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from stack.errors import BackendMissing
from stack.measure.gpu_timing import measure
from stack.measure.roofline import Ceilings
from stack.releases import install_hint

SIDE = 8192
COPY = 1 << 30  # bytes read; the same number is written
WARM = 10
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def load_torch() -> Any:
    """Imports torch on a machine with a CUDA device. Raises BackendMissing without either."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise BackendMissing("gpu", f"install the extra: {install_hint('torch')}") from (error)
    if not torch.cuda.is_available():
        raise BackendMissing(
            "gpu",
            "this suite is timed on an NVIDIA GPU, and torch sees none here (torch"
            f" {torch.__version__}); kernels for one can be compiled without it:"
            " stackc dump TARGET --backend triton",
        )
    return torch


def gpu_ceilings(torch: Any, rounds: int = 7, kinds: Sequence[str] = ("bf16",)) -> Ceilings:
    """Measures the flop/s of 8192^3 matmuls on random data, and the rate of a 1 GiB device copy.

    `kinds` of "bf16", "f16" and "f32" (in full precision).
    """
    rates = {kind: 2 * SIDE**3 / _product(torch, getattr(torch, DTYPES[kind]), rounds)
             for kind in kinds}  # fmt: skip
    source = torch.randn(COPY // 4, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    copy = measure(torch, lambda: target.copy_(source), rounds, count=4)
    names = ", ".join(kinds)
    how = f"{names} {SIDE}^3 by torch on random data, a copy of {COPY >> 30} GiB, best of {rounds}"
    return Ceilings(rates, {COPY: 2 * COPY / copy}, 0, how)


def _product(torch: Any, dtype: Any, rounds: int) -> float:
    """Returns the seconds of one large matmul of two `dtype` matrices on the GPU."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in range(2))
    for _ in range(WARM if dtype.itemsize == 2 else 1):
        torch.mm(a, b)
    return measure(torch, lambda: torch.mm(a, b), rounds, count=4 if dtype.itemsize == 2 else 1)


def gpu_text(torch: Any) -> str:
    """Describes the device."""
    found = torch.cuda.get_device_properties(0)
    memory = found.total_memory / 2**30
    return f"{found.name}, {found.multi_processor_count} SMs, {memory:.0f} GiB, CUDA " + str(
        torch.version.cuda
    )
