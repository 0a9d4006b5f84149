"""Compiles the backward graph of a training step while the kernels of its forward graph compile.

AOTAutograd asks for the backward graph only in the first backward pass. By then, the kernels of the
forward graph were waited for. That wait, in which other processes compile, is long enough to lower
the backward graph and to send its kernels to them. A graph of symbolic sizes compiles only when it
is called with sizes, so that its backward graph is not started early.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.fx import GraphModule

from stack.frontends.torch.compile.sparse_gradients import sparse_nodes

Partition = Callable[..., tuple[GraphModule, GraphModule]]


class _Sent(Exception):
    """Ends a compilation whose kernels are being compiled, instead of a wait for them."""


class EarlyBackward:
    """Keeps what is known of a backward graph before AOTAutograd asks for it.

    Attributes:
        graph: the backward graph, as it was partitioned, until it is started.
        known: its stages, see `Captured.known`. The worker pool keeps its kernels.
    """

    def __init__(self) -> None:
        self.graph: GraphModule | None = None
        self.known: dict[Any, Any] = {}

    def cut(self, partition: Partition, *args: Any, **options: Any) -> Any:
        """Partitions a joint graph, and keeps the backward graph."""
        forward, self.graph = partition(*args, **options)
        return forward, self.graph

    def start(self, make: Callable[[GraphModule, Callable[[], object]], object]) -> None:
        """Compiles the backward graph until it would wait for kernels: `make` takes the graph, and
        what to call then.
        """
        graph, self.graph = self.graph, None
        if graph is not None and not sparse_nodes(graph):
            with suppress(Exception):  # those of the graph are raised when AOTAutograd asks for it
                make(copy.deepcopy(graph), _leave)


def _leave() -> None:
    raise _Sent
