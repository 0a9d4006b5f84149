"""Wing `calls`: calls of compiled programs from PyTorch and JAX; see its README."""

from stack.calls.capture import capture
from stack.calls.compiled_callable import Compiled, compile, jit
from stack.calls.training import train_runs

__all__ = ["Compiled", "capture", "compile", "jit", "train_runs"]
