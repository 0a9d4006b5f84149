"""Triton's interpreter on the CPU, which TRITON_INTERPRET=1 asks for, with two faults mended.

It makes an index of an array of one element by `int`, which NumPy takes no longer: a loop whose
bounds are computed fails. And it multiplies the bits of bf16 tiles, not their values. Kernels are
Python there, those by hand too, so what Triton patches for them is mended and not their text.
Arithmetic on bf16 outside of dots stays wrong: kernels compute in f32.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def is_asked_for() -> bool:
    """Whether kernels are interpreted, as Triton decides when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def mend() -> None:
    """Mend the interpreter, where it is asked for; before kernels run."""
    if not is_asked_for():
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    patch, dot = interpreter._patch_lang_tensor, builder.create_dot

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def values(tile: Any) -> Any:
        if tile.dtype.scalar != tl.bfloat16:
            return tile
        wide = (tile.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def dotted(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, values(a), values(b), *rest)

    interpreter._patch_lang_tensor, builder.create_dot = patched, dotted
