"""stack: watch a PyTorch module or a JAX function become machine code, stage by stage.

`import stack` loads NumPy only; frameworks load on use. So do functions of wings: without the wing,
their use raises WingMissing.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from stack import errors
from stack.ir import Func, parse, verify
from stack.rewrite import Pass, Pipeline
from stack.rewrite.pipeline import register_pass
from stack.run.trace import trace
from stack.wings import wing

if TYPE_CHECKING:
    from stack.calls import capture, compile, jit
    from stack.faults import first_nan
    from stack.hosted import Kernel, op

_OF_WINGS = {
    "Kernel": "ops",
    "capture": "calls",
    "compile": "calls",
    "first_nan": "faults",
    "jit": "calls",
    "op": "ops",
}

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


def __getattr__(name: str) -> Any:
    """Loads a function of a wing on first use, or looks up the installed version. Raises
    WingMissing without the wing.
    """
    if name == "__version__":
        return version("stack-compiler")
    if name not in _OF_WINGS:
        raise AttributeError(f"module 'stack' has no attribute {name!r}")
    found = globals()[name] = getattr(wing(_OF_WINGS[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
