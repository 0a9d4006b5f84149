"""Triton's interpreter with two faults mended; import it where TRITON_INTERPRET=1 is set.

It makes a number of an array of one element, which NumPy no longer does; and it multiplies the bit
patterns of bf16 tiles, not their values. Arithmetic on bf16 outside of dots stays wrong: kernels
compute in f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_dot = interpreter.InterpreterBuilder.create_dot


def _patched(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _values(tile: Any) -> Any:
    if tile.dtype.scalar != tl.bfloat16:
        return tile
    wide = (tile.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


def _dotted(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _dot(self, _values(a), _values(b), *rest)


interpreter._patch_lang_tensor = _patched
interpreter.InterpreterBuilder.create_dot = _dotted
