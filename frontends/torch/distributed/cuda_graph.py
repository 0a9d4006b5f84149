"""Records a rank's step with its collectives as one CUDA graph, so the host launches once.

The first call runs normally and creates communicators, buffers and kernels. The second call is
recorded. It and all later calls are replays, which read and write the recorded addresses. An NCCL
communicator waits at its end for all graphs with its collectives, so the graphs have to be closed
first: see `stack.frontends.torch.distributed.mesh.leave`.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch

from stack.frameworks import torch_private as private
from stack.frameworks.torch_captures import recovering

Tensor = torch.Tensor
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]

_recorded: WeakSet[Recorded] = WeakSet()
# copies a list of tensors into another, in one launch if their dtypes are equal
_copy_all: Any = private.copy_all


class Recorded:
    """A function of GPU tensors, recorded and replayed.

    The next call overwrites the results.

    Args:
        carried: maps results to the arguments that they become in the next call. These arguments
            are overwritten and returned as the results, so no copies between calls are needed.

    Attributes:
        problem: the reason if recording failed; calls then run without a graph.
    """

    def __init__(self, carried: Mapping[int, int]) -> None:
        self.carried = dict(carried)
        self.is_warm = False
        self.problem = ""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.places: list[Tensor] = []
        self.results: list[Tensor] = []

    def __call__(self, run: Run, args: Sequence[Tensor]) -> list[Tensor]:
        """Calls `run`, the same function in each call; it must not wait for the GPU."""
        if self.problem or not self.is_warm:
            self.is_warm = True
            return list(run(args))
        if self.graph is None and not self._record(run, args):
            return list(run(args))
        moved = [(p, a) for p, a in zip(self.places, args, strict=True) if _at(p) != _at(a)]
        if moved:
            _copy_all(*map(list, zip(*moved, strict=True)))
        assert self.graph is not None
        self.graph.replay()
        return list(self.results)

    def close(self) -> None:
        """Delete the graph; the next call records again."""
        if self.graph is not None:
            self.graph.reset()
        self.graph = None
        self.places, self.results = [], []

    def _record(self, run: Run, args: Sequence[Tensor]) -> bool:
        own = set(self.carried.values())
        self.places = [a if i in own else a.clone() for i, a in enumerate(args)]
        graph = torch.cuda.CUDAGraph()
        device = next((a.device for a in args), torch.device("cpu"))
        try:
            with (
                recovering(device),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                self.results = list(run(self.places))
                for result, place in self.carried.items():
                    self.places[place].copy_(self.results[result])
                    self.results[result] = self.places[place]
        except Exception as error:  # from any library: without a graph the steps still run
            self.problem = str(error).strip().split("\n")[0]
            self.close()
            warnings.warn(
                f"no CUDA graph, the host launches step by step: {self.problem}", stacklevel=4
            )
            return False
        self.graph = graph
        _recorded.add(self)
        return True


def _at(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.stride()


@atexit.register
def close_all() -> None:
    """Delete all graphs, before the communicators of their collectives are destroyed."""
    for recorded in list(_recorded):
        recorded.close()
