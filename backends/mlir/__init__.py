"""The mlir backend: compiles the loop level to MLIR text and to native code in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from stack.releases import install_hint
from stack.run.backend import Backend, Lowering, Machine, Resume
from stack.target import cpu_at_hand
from stack.wings import call_if_here

from . import elf
from .compiler import cache_of, compile_program, inspect_program, resume_program

# ops without code generation: their groups run through a library and are labelled so
REFUSED = "digamma"


def _missing() -> str | None:
    if importlib.util.find_spec("mlir") or importlib.util.find_spec("torch_mlir"):
        return None
    return f"install the extra: {install_hint('mlir')}"


def _warm(options: Mapping[str, Any]) -> None:
    call_if_here("mlir-ahead", cache_of(options))


def _limits() -> str:
    if elf.supported():
        return ""
    return (
        "each process compiles its code again and threads are Python's, because cached objects"
        " and the native pool need Linux on x86-64"
    )


BACKEND = Backend(
    name="mlir",
    compile=compile_program,
    inspect=inspect_program,
    missing=_missing,
    lowering=Lowering(
        level="loop",
        stages=(
            (
                "canonical",
                "inline,canonicalize,roll,fold,decompose{apart=false},distances,"
                "selection{loops=cpu},indexed,unroll_loops,canonicalize",
            ),
            ("laid-out", "layout{loops=cpu},canonicalize"),
            (
                "streamed",
                f"stream{{loops=cpu,refuse=[{REFUSED}]}},unfold,pad_rows,split_reductions",
            ),
            ("fused", f"fuse{{refuse=[{REFUSED}]}},coalesce"),
            ("scheduled", "schedule{loops=cpu}"),
            ("tiled", f"tile{{refuse=[{REFUSED}]}},library"),
            ("loop", "distribute,memory"),
        ),
        artifacts=("mlir", "llvm", "asm"),
        steps="stack.passes.policies.lowerings:shown_steps",
        inner="stack.backends.mlir.inner_passes:inner_passes",
        resume=Resume(("mlir", "llvm"), resume_program),
        retreat="retreat",
        hosts="cpu",
    ),
    options=("cache", "excess_precision", "freeze", "hosted", "schedule", "target", "tune"),
    machine=Machine(_warm, None, lambda _: cpu_at_hand(), _limits, "cpu"),
)
