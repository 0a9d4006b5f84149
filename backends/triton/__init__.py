"""The triton backend: tile level to Triton, for NVIDIA GPUs."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from stack.errors import BackendMissing
from stack.ir.node import Func
from stack.run.backend import Backend, Executable, Inspected

from .expressions import REFUSED

# flops of bf16 products in a stream of an H100, by the bytes that it copies meanwhile
BALANCE = 150.0


def _missing() -> str | None:
    """What stands against running here; compiling needs no GPU."""
    if not importlib.util.find_spec("triton"):
        return "install the extra: pip install 'stack-compiler[triton]'"
    if not importlib.util.find_spec("torch"):
        return "install the extra: pip install 'stack-compiler[torch]'"
    import torch

    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return (
        "no CUDA device here; `stackc dump --backend triton --target sm_90` compiles without one,"
        " and TRITON_INTERPRET=1 runs on the CPU"
    )


def _compile(func: Func, options: dict[str, Any]) -> Executable:
    need = _missing()
    if need is not None:
        raise BackendMissing("triton", need)
    from .compiler import compile_program

    return compile_program(func, options)


def _warm() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        from .build import forks

        forks().warm()


def _inspect(func: Func, options: dict[str, Any]) -> Inspected:
    from .compiler import inspect_program

    return inspect_program(func, options)


def _identify(options: dict[str, Any]) -> str:
    import torch
    import triton

    device = torch.device(options.get("device") or "cuda")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}"


BACKEND = Backend(
    name="triton",
    level="tile",
    doc="Triton kernels from tiles of any rank: streams, products, TMA descriptors",
    stages=(
        ("canonical", "inline,canonicalize,roll,fold,decompose{gpu=true},diagonals,canonicalize"),
        ("laid-out", "layout,canonicalize"),
        (
            "streamed",
            f"stream{{min_axis=32769,balance={BALANCE},loops=blocks,"
            f"refuse=[{','.join(REFUSED)}]}},stream_limits",
        ),
        ("split", "split_reductions"),
        ("fused", "fuse{max_epilogue=20,join=true},walks,collapse,beside,pad_rows,tiles"),
        (
            "tiled",
            f"blocks{{refuse=[{','.join(REFUSED)}]}},library,memory{{made=[conv,ragged_dot],updated=[scatter]}}",
        ),
    ),
    proposal="tiles{most=8}",
    retreat="retreat{tiles=4}",
    identify=_identify,
    compile=_compile,
    missing=_missing,
    inspect=_inspect,
    warm=_warm,
    balance=BALANCE,
    options=("assembled", "cache", "device", "excess_precision", "graph", "tune"),
    artifacts=("triton", "ttir", "ttgir", "llir", "ptx", "sass"),
)
