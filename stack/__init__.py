"""stack: watch a PyTorch module or a JAX function become machine code, stage by stage.

`import stack` loads NumPy only; frameworks load on use.
"""

from __future__ import annotations

from stack import errors
from stack.compiled_callable import compile, jit
from stack.explore.ask_first_nan import first_nan
from stack.explore.capture import capture
from stack.hosted import Kernel, op
from stack.ir import Func, parse, verify
from stack.rewrite import Pass, Pipeline
from stack.rewrite.pipeline import register_pass
from stack.run.trace import trace

__all__ = [
    "Func",
    "Kernel",
    "Pass",
    "Pipeline",
    "capture",
    "compile",
    "errors",
    "first_nan",
    "jit",
    "op",
    "parse",
    "register_pass",
    "trace",
    "verify",
]
