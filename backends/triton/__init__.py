"""The triton backend: compiles the tile level to Triton, for NVIDIA GPUs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from stack.errors import BackendMissing
from stack.ir.func import Func
from stack.ir.node import Node
from stack.releases import install_hint
from stack.run.backend import Backend, Executable, Inspected, Lowering, Machine

from ..device.machine import gpu_at_hand
from . import interpreter
from .expressions import REFUSED


def _missing_compiler() -> str | None:
    """The package to install before Triton can compile, or None."""
    for package in ("triton", "torch"):
        if not importlib.util.find_spec(package):
            return f"install the extra: {install_hint(package)}"
    return None


def _missing() -> str | None:
    """The reason why kernels cannot run here, or None. Compiling alone needs no GPU."""
    need = _missing_compiler()
    if need is not None:
        return need
    import torch

    if torch.cuda.is_available() or interpreter.is_asked_for():
        return None
    return (
        "no CUDA device here; `stackc dump --backend triton --target sm_90` compiles without one,"
        " and TRITON_INTERPRET=1 runs on the CPU"
    )


def compile_triton(func: Func, options: dict[str, Any]) -> Executable:
    """Compiles tiles of any rank to Triton kernels, with streams, matmuls and TMA descriptors.

    Options:
        device: "cuda" or "cuda:1"; "cpu" under TRITON_INTERPRET=1.
        call_opaque: the function that executes `opaque` nodes.
        cache: False to keep nothing on disk (default: `cache_folder()`).
        graph: False to launch step by step instead of replaying CUDA graphs. Intermediates then
            have no memory between calls.
        assembled: True to report the assembler's registers, spills and warnings per kernel.
        shared: True if other kernels, such as collectives, run on the GPU meanwhile.
        target: the GPU to lower for, a name or a file (default: this machine's).
    """
    need = _missing()
    if need is not None:
        raise BackendMissing("triton", need)
    interpreter.mend()
    from .compiler import compile_program

    return compile_program(func, options)


def _warm(_: Mapping[str, Any]) -> None:
    if not interpreter.is_asked_for():
        from .build import worker_pool

        worker_pool().warm()


def _start(options: dict[str, Any], kernel: Node) -> None:
    from .compiler import start

    start(options, kernel)


def _inspect(func: Func, options: dict[str, Any]) -> Inspected:
    need = _missing_compiler()
    if need is not None:
        raise BackendMissing("triton", need)
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
    compile=compile_triton,
    missing=_missing,
    lowering=Lowering(
        steps="stack.passes.policies.lowerings:shown_steps",
        inner="stack.backends.triton.inner_passes:inner_passes",
        level="tile",
        stages=(
            (
                "canonical",
                "inline,canonicalize,roll,fold,decompose{gpu=true},distances,scatter_to_reduce,"
                "selection,unroll_loops,canonicalize,trip_counts",
            ),
            ("laid-out", "layout,canonicalize"),
            (
                "streamed",
                f"stream{{min_axis=32769,loops=blocks,refuse=[{','.join(REFUSED)}]}},stream_limits",
            ),
            ("split", "fission,k_major,round_operands,hoist,split_reductions"),
            (
                "fused",
                f"fuse{{max_epilogue=20,multi_gemm=true,refuse=[{','.join(REFUSED)}]}},mix_order,"
                "coalesce,horizontal_fusion,pad_rows",
            ),
            ("scheduled", "schedule"),
            (
                "tiled",
                f"blocks{{refuse=[{','.join(REFUSED)}],dots=[f32]}},library,"
                "memory{made=[conv,ragged_dot],updated=[scatter]}",
            ),
        ),
        artifacts=("triton", "ttir", "ttgir", "llir", "ptx", "sass"),
        retreat="retreat{schedules=4}",
        hosts="cuda",
        proposal="schedule{most=8}",
        recomputes=True,
    ),
    inspect=_inspect,
    options=(
        *("assembled", "cache", "device", "excess_precision", "graph", "hosted", "schedule"),
        *("shared", "target", "tune"),
    ),
    machine=Machine(_warm, _identify, gpu_at_hand, kind="gpu", start=_start),
)
