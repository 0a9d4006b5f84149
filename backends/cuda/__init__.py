"""The cuda backend: compiles the loop level to CUDA C++, and to machine code through NVRTC."""

from __future__ import annotations

import importlib.util
from typing import Any

from stack.errors import BackendMissing
from stack.ir.func import Func
from stack.releases import install_hint
from stack.run.backend import Backend, Executable, Inspected, Lowering, Machine

from ..device.machine import gpu_at_hand
from . import nvrtc
from .compiler import compile_program, inspect_program

REFUSED = "digamma,scatter"  # ops without code; scatters may collide


def _missing() -> str | None:
    """The reason why kernels cannot run here, or None. Compiling alone needs no GPU."""
    need = nvrtc.missing_compiler()
    if need is not None:
        return need
    if not importlib.util.find_spec("torch"):
        return f"install the extra: {install_hint('torch')}"
    import torch

    if not torch.cuda.is_available():
        return (
            "no CUDA device here; `stackc dump --backend cuda --target sm_90` compiles without one"
        )
    return None


def compile_cuda(func: Func, options: dict[str, Any]) -> Executable:
    """Compiles CUDA C++ kernels through NVRTC: warps, shared memory, tensor cores.

    Options:
        device: "cuda" or "cuda:1".
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: the function that executes `opaque` nodes.
        graph: False to launch step by step instead of replaying CUDA graphs. Intermediates then
            have no memory between calls.
        target: the GPU to lower for, a name or a file (default: this machine's).
    """
    need = _missing()
    if need is not None:
        raise BackendMissing("cuda", need)
    return compile_program(func, options)


def _inspect(func: Func, options: dict[str, Any]) -> Inspected:
    need = nvrtc.missing_compiler()
    if need is not None:
        raise BackendMissing("cuda", need)
    return inspect_program(func, options)


BACKEND = Backend(
    name="cuda",
    compile=compile_cuda,
    missing=_missing,
    lowering=Lowering(
        steps="stack.passes.policies.lowerings:shown_steps",
        level="loop",
        stages=(
            (
                "canonical",
                "inline,canonicalize,roll,fold,decompose{gpu=true},distances,scatter_to_reduce,"
                "selection,unroll_loops,canonicalize,trip_counts",
            ),
            ("laid-out", "layout,canonicalize"),
            (
                "streamed",
                f"stream{{min_axis=32769,loops=blocks,refuse=[{REFUSED}]}},stream_limits",
            ),
            ("split", "split_reductions"),
            ("fused", f"fuse{{refuse=[{REFUSED}]}},mix_order,coalesce"),
            ("scheduled", "schedule{loops=warps}"),
            ("tiled", f"blocks{{refuse=[{REFUSED}]}},library"),
            ("loop", "distribute_gpu,memory{made=[conv,ragged_dot],updated=[scatter]}"),
        ),
        artifacts=("cuda", "ptx", "sass"),
        retreat="retreat",
        hosts="cuda",
    ),
    inspect=_inspect,
    options=(
        *("cache", "device", "excess_precision", "graph", "hosted", "schedule"),
        *("shared", "target", "tune"),
    ),
    machine=Machine(lambda _: nvrtc.worker_pool().warm(), at_hand=gpu_at_hand, kind="gpu"),
)
