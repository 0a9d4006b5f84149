"""Fixes two bugs of Triton's interpreter on the CPU (TRITON_INTERPRET=1).

It converts one-element arrays to an index by `int`, which NumPy no longer accepts, so loops with
computed bounds fail. And it multiplies the bits of bf16 tiles, not their values. In the interpreter
all kernels are Python, those written by hand too. So the fix patches Triton and not the kernels'
text. bf16 arithmetic outside of dots stays wrong; our kernels compute in f32.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def is_asked_for() -> bool:
    """True if kernels are interpreted. Triton decides this when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def mend() -> None:
    """Patch the interpreter, if it is in use. Call it before kernels run."""
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
