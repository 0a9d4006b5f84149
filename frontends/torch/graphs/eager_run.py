"""Runs a Dynamo graph once in eager, to see what fake tensors cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from stack.frameworks.torch_private import without_modes
from stack.frontends.torch.importer.origins import source_line

_OWN_MEMORY = (torch.Tensor, torch.nn.Parameter)


@contextmanager
def in_eager() -> Iterator[None]:
    """Context without torch modes and gradients; restores the state of the CPU generator."""
    with without_modes(), torch.no_grad():
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)


def run_in_eager(
    gm: GraphModule, examples: Sequence[Any], seen: Callable[[Node, Any], None] | None = None
) -> None:
    """Run a graph on copies of its arguments; raises its errors with the call's source line.

    Does nothing if some argument is neither a tensor with memory nor a number.

    Args:
        seen: called with each node and its value.
    """
    if all(type(x) in _OWN_MEMORY or isinstance(x, int | float) for x in examples):
        given = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in examples]
        with in_eager():
            _Eager(gm, seen).run(*given)


class _Eager(Interpreter):
    def __init__(self, gm: GraphModule, seen: Callable[[Node, Any], None] | None) -> None:
        super().__init__(gm)
        self.seen = seen

    def run_node(self, n: Node) -> Any:
        try:
            value = super().run_node(n)
        except Exception as error:
            place = ", ".join(source_line(n))
            raise type(error)(f"{error}\n(at {place})" if place else str(error)) from None
        if self.seen is not None:
            self.seen(n, value)
        return value
