"""Wing `calls`: calls of compiled programs from PyTorch and JAX; see its README."""

from stack.calls.capture import capture
from stack.calls.compiled_callable import Compiled, compile, jit

__all__ = ["Compiled", "capture", "compile", "jit"]
