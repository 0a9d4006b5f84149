"""Code of kernels written by hand for Hopper, made without a GPU."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel
from triton.experimental.gluon._runtime import GluonASTSource

SHARED = 232448  # bytes that one program may have


def compiled(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    aligned: Container[str] = (),
    **options: int,
) -> Any:
    """A kernel of Triton or Gluon that fits shared memory.

    `types`: of parameters that are neither i32 nor constants; `aligned`: multiples of 16.
    """
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    whole = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in aligned}
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        kernel, signature, dict(constants), whole
    )
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.metadata.shared <= SHARED
    return made


def pointers(kernel: Any, elements: str) -> dict[str, str]:
    """Types of the parameters whose names end in `_ptr`, by those of their elements, in order."""
    names = [n for n in kernel.arg_names if n.endswith("_ptr")]
    return {name: f"*{kind}" for name, kind in zip(names, elements.split(), strict=True)}
