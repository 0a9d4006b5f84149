"""stack: watch a PyTorch module or a JAX function become machine code, stage by stage.

`import stack` loads NumPy only; frameworks load on use.
"""

from __future__ import annotations

from stack import errors
from stack.ir import Func, parse, verify

__all__ = ["Func", "errors", "parse", "verify"]
