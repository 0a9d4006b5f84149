"""The module after each pass of MLIR's own pipeline, which `compile` runs at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stack.errors import StackError
from stack.ir.func import Func
from stack.target import Target

from . import llvm


def inner_passes(
    kernels: Sequence[str], func: Func, target: Target | None
) -> Iterator[tuple[str, str]]:
    """Yields each pass of MLIR with the modules of the kernels after it.

    `kernels` are the texts of a run's kernels, which are lowered again.
    """
    mlir, context = llvm.bindings(), llvm.context()
    names = llvm.PIPELINE.partition("(")[2].rstrip(")").split(",")
    try:
        modules = [mlir.ir.Module.parse(text, context) for text in dict.fromkeys(kernels)]
        for name in names:
            step = mlir.passmanager.PassManager.parse(f"builtin.module({name})", context)
            step.enable_verifier(False)
            for module in modules:
                step.run(module.operation)
            yield name, "\n".join(map(str, modules))
    except (mlir.ir.MLIRError, ValueError) as error:
        raise StackError(f"MLIR refuses a kernel of the run: {error}") from error
