"""AOTAutograd for one Dynamo graph.

`torch._dynamo.backends.common.aot_autograd` does the same, but also writes Inductor's logs and
imports Inductor's scheduler for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functorch.compile import aot_module_simplified
from torch.compiler import disable
from torch.fx import GraphModule

from stack.frameworks import torch_private as private


def aot_compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    bw_compiler: Callable[..., Any],
    **options: Any,
) -> Callable[..., Any]:
    """Compiles a graph through AOTAutograd and returns the callable.

    Dynamo is disabled for the callable and for the compilers.

    Args:
        options: those of `aot_module_simplified`.
    """
    if any(isinstance(x, list | tuple | dict) for x in example_inputs):
        again = partial(aot_compiled, bw_compiler=bw_compiler, **options)
        return private.flattened(gm, example_inputs, again)

    def backward(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:  # compiled at first use
        compiler: Any = disable(bw_compiler, reason="it compiles the backward graph")
        made = compiler(gm, example_inputs)
        return disable(made, reason="it is a compiled graph")

    made = aot_module_simplified(gm, example_inputs, bw_compiler=backward, **options)
    return disable(made, reason="it is a compiled graph")
