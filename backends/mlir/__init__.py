"""The mlir backend: compiles the loop level to MLIR text and to native code in this process."""

from __future__ import annotations

from stack.run.backend import Backend, Lowering, Machine, Resume
from stack.target import cpu_at_hand

from . import elf, llvm
from .compiler import compile_program, inspect_program, resume_program, warm

# ops without code generation: their groups run through a library and are labelled so
REFUSED = "digamma"


def _limits() -> str:
    if elf.IS_SUPPORTED:
        return ""
    return (
        "each process compiles its code again and threads are Python's, because cached objects"
        " and the native pool need Linux on x86-64"
    )


BACKEND = Backend(
    name="mlir",
    compile=compile_program,
    inspect=inspect_program,
    missing=llvm.missing,
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
    machine=Machine(warm, None, lambda _: cpu_at_hand(), _limits, "cpu"),
)
