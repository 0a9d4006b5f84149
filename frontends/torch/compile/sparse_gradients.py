"""Graphs with sparse gradients, which the IR does not have: torch runs such a graph op by op."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from stack.errors import UnsupportedOp
from stack.run.record import Run, Stage


def sparse_nodes(graph: GraphModule) -> list[FxNode]:
    """Returns the nodes of an ATen graph whose results are not strided tensors."""
    return [n for n in graph.graph.nodes if _is_sparse(n.meta.get("val"))]


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


class OpByOp:
    """A graph that torch runs op by op; its record counts every op as a fallback.

    Raises UnsupportedOp if `is_strict`.
    """

    def __init__(
        self, graph: GraphModule, sparse: Sequence[FxNode], target: str, is_strict: bool
    ) -> None:
        self.graph, self.target = graph, target
        names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        reason = f"the IR has no tensors of layout {sparse[0].meta['val'].layout}"
        if is_strict:
            raise UnsupportedOp([(str(n.target), ()) for n in sparse], reason)
        warnings.warn(f"{target} runs op by op in torch: {reason}; use sparse=False", stacklevel=2)
        run = Run(target, "torch", "eager", notes={"fallbacks": f"{sparse[0].target}: {reason}"})
        run.records.append(
            Stage(
                "captured",
                make_text=lambda: graph.print_readable(print_output=False, colored=False),
            )
        )
        count = {"native": 0, "library": 0, "fallback": len(names)}
        total = {"ops": len(names), **count, "fallback_ops": dict(Counter(names))}
        run.count = lambda: total
        self.runs = {(): run}

    def _text(self) -> str:
        return self.graph.print_readable(print_output=False, colored=False)

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.graph(*args)
