"""CUDA graphs of a program: captured once for each set of input addresses, then replayed.

A replay launches all steps at once, for less than the cost of one launch from Python. A graph
writes its results where it wrote them before, so it is replayed only when nobody holds them any
more; two graphs take turns, and where both are held the steps are launched one by one. Nothing is
copied, and no result is ever overwritten under its owner.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from .program import Program

Tensor = torch.Tensor
WARM = 2  # calls with the same addresses before a capture
TURNS = 2  # graphs of one set of addresses
SETS = 32  # sets of addresses that are remembered
KEEP = 1 << 28  # bytes of results that all graphs together keep alive


# how many share a storage: the tensors over it, views of any kind included, and we
_holders: Any = torch._C._storage_Use_Count  # pyright: ignore


class Captured:
    """A graph and the results that it writes."""

    def __init__(self, graph: Any, results: list[Tensor]) -> None:
        self.graph = graph
        self.results = results
        self.storages: list[Any] = [r.untyped_storage() for r in results]
        self.alone = [(s._cdata, _holders(s._cdata)) for s in self.storages]

    @property
    def is_free(self) -> bool:
        """Whether nobody else holds what the last replay gave."""
        return all(_holders(place) == count for place, count in self.alone)

    def replay(self) -> list[Tensor]:
        self.graph.replay()
        # other tensors over the same memory: who holds them is counted
        return [r.detach() for r in self.results]


class Replays:
    """Runs a program through graphs where it can, step by step where it cannot.

    `problem` says why no graph is captured any more, where that is so.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: OrderedDict[tuple[int, ...], tuple[int, list[Captured]]] = OrderedDict()
        size = sum(v.bytes for v, _ in program.outputs)
        self.turns = KEEP // (TURNS * max(size, 1))  # sets of addresses that memory allows
        self.pool: Any = None
        self.problem = "" if program.capturable else "a step needs the host"
        if not self.problem and not self.turns:
            self.problem = f"its results are {size} bytes, which two graphs would keep alive"

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Dense tensors of the device in, tensors that the caller owns out."""
        with self.program.lock:
            if self.problem or self.program.being_captured:
                return self.program.run(inputs)
            key = tuple(t.data_ptr() for t in inputs)
            calls, graphs = self.known.get(key, (0, []))
            self._remember(key, calls + 1, graphs)
            if calls < WARM:
                return self.program.run(inputs)
            free = next((g for g in graphs if g.is_free), None)
            if free is None and len(graphs) < TURNS:
                free = self._capture(inputs)
                if free is not None:
                    graphs.append(free)
            if free is None:
                return self.program.run(inputs)
            with self.program.here():
                return free.replay()

    def _remember(self, key: tuple[int, ...], calls: int, graphs: list[Captured]) -> None:
        self.known[key] = (calls, graphs)
        self.known.move_to_end(key)
        if len(self.known) > SETS:
            self.known.popitem(last=False)
        holding = [k for k, (_, found) in self.known.items() if found and k != key]
        while len(holding) >= max(1, self.turns):
            del self.known[holding.pop(0)]

    def _capture(self, inputs: Sequence[Tensor]) -> Captured | None:
        try:
            with torch.cuda.device(self.program.device):
                graph = torch.cuda.CUDAGraph()
                if self.pool is None:
                    self.pool = torch.cuda.graph_pool_handle()
                with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                    results = self.program.run(inputs)
        except Exception as error:  # of any library: the steps still run one by one
            self.problem = str(error).strip().split("\n")[0]
            warnings.warn(
                f"no CUDA graph, its steps are launched one by one: {self.problem}", stacklevel=2
            )
            return None
        return Captured(graph, results)
