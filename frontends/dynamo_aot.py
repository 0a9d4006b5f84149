"""AOTAutograd for a graph of Dynamo's.

`torch._dynamo.backends.common.aot_autograd` is the same with logs of Inductor's, for which it
imports Inductor's scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch._dynamo import disable
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule


def aot_compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    bw_compiler: Callable[..., Any],
    **options: Any,
) -> Callable[..., Any]:
    """What a graph is called through. Dynamo traces nothing of it, nor what compiles it.

    Args:
        options: those of `aot_module_simplified`.
    """
    if any(isinstance(x, list | tuple | dict) for x in example_inputs):
        again = partial(aot_compiled, bw_compiler=bw_compiler, **options)
        return flatten_graph_inputs(gm, example_inputs, again)

    def backward(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:  # when that pass comes
        compiler: Any = disable(bw_compiler, reason="it compiles the backward graph")
        made = compiler(gm, example_inputs)
        return disable(made, reason="it is a compiled graph")

    made = aot_module_simplified(gm, example_inputs, bw_compiler=backward, **options)
    return disable(made, reason="it is a compiled graph")
