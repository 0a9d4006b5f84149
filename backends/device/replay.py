"""CUDA graphs of a program: a call copies what moved into place and launches all steps at once.

A graph reads where its inputs were and writes where its results were. Each call compares the
addresses of all inputs: a small one that comes at another address gets a place of its own, into
which later calls copy it; of large ones, each set of addresses has graphs of its own. Results are
given out when nobody holds those of the last replay any more; two graphs take turns, and where
both are held a third one's results are copied. No result is ever overwritten under its owner.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from ..runtime.program import Program
from .torch_device import TorchDevice

Tensor = torch.Tensor
WARM = 2  # calls with the same addresses before a capture
TURNS = 2  # graphs of one set of addresses whose results are given out
SETS = 32  # sets of addresses that are remembered
KEEP = 1 << 28  # bytes of results that a program's graphs together keep alive, and on a GPU
SHARE = 16  # the part of its memory: a training step keeps what its backward pass reads
COPIED = 1 << 22  # bytes of an input that are copied for less than launches cost


# how many share a storage: the tensors over it, views of any kind included, and we
_holders: Any = torch._C._storage_Use_Count  # pyright: ignore
# copies a list of tensors into another, with one launch where their dtypes are the same
_copy_all: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


class Captured:
    """A graph and the results that it writes; where it is `private`, copies are given out."""

    def __init__(self, graph: Any, results: list[Tensor], private: bool = False) -> None:
        self.graph = graph
        self.results = results
        self.private = private
        self.storages: list[Any] = [r.untyped_storage() for r in results]
        self.alone = [(s._cdata, _holders(s._cdata)) for s in self.storages]

    @property
    def is_free(self) -> bool:
        """Whether a replay overwrites nothing that somebody holds."""
        return self.private or all(_holders(place) == count for place, count in self.alone)

    def replay(self) -> list[Tensor]:
        self.graph.replay()
        if self.private:
            return [r.clone() for r in self.results]
        # other tensors over the same memory: who holds them is counted
        return [r.detach() for r in self.results]


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return KEEP
    return max(KEEP, torch.cuda.get_device_properties(device).total_memory // SHARE)


def _release_generators(device: torch.device) -> None:
    """Let torch draw random numbers again.

    A capture that fails leaves torch's generators in capturing mode; one that ends well, even of
    nothing, takes them out of it.
    """
    with warnings.catch_warnings(), torch.cuda.device(device), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")  # an empty graph
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            pass


class Replays:
    """Runs a program through graphs where it can, step by step where it cannot.

    `problem` says why no graph is captured any more, where that is so.
    """

    def __init__(self, program: Program) -> None:
        assert isinstance(program.device, TorchDevice)
        self.program, self.device = program, program.device
        self.known: OrderedDict[tuple[int, ...], tuple[int, list[Captured]]] = OrderedDict()
        self.at: list[int] = []  # where the inputs of the last call were
        self.key: tuple[int, ...] = ()  # where those were that are read from there
        self.places: dict[int, Tensor] = {}  # of inputs that moved, by number
        size = sum(v.bytes for v in program.results)
        # sets of addresses that memory allows
        self.turns = _budget(self.device.where) // ((TURNS + 1) * max(size, 1))
        self.pool: Any = None
        self.problem = "" if self.device.is_gpu and program.capturable else "a step needs the host"
        if not self.problem and not self.turns:
            self.problem = f"its results are {size} bytes, which its graphs would keep alive"

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Dense tensors of the device in, tensors that the caller owns out."""
        with self.program.lock:
            if self.problem or self.device.being_captured:
                return self.program.run(inputs)
            at = [t.data_ptr() for t in inputs]
            if at != self.at:
                self._move(at, inputs)
            calls, graphs = self.known.get(self.key, (0, []))
            if calls < WARM:
                self._remember(calls + 1, graphs)
                return self.program.run(inputs)
            with torch.no_grad():
                self.device.follow()
                placed = self._placed(inputs)
                free = next((g for g in graphs if g.is_free), None)
                if free is None:
                    free = self._capture(placed, private=len(graphs) == TURNS)
                    if free is None:
                        return self.program.run(inputs)
                    self._remember(calls, [*graphs, free])
                return free.replay()

    def _move(self, at: list[int], inputs: Sequence[Tensor]) -> None:
        """Note where the inputs are; small ones that were somewhere else get a place."""
        moved = [i for i, (now, then) in enumerate(zip(at, self.at)) if now != then]
        fresh = [i for i in moved if i not in self.places and inputs[i].nbytes <= COPIED]
        with torch.inference_mode(False):  # what is made there can be written only there
            self.places |= {i: torch.empty_like(inputs[i]) for i in fresh}
        if fresh:
            self.known.clear()  # these graphs read them where they were
        self.at = at
        self.key = tuple(a for i, a in enumerate(at) if i not in self.places)
        if self.key in self.known:
            self.known.move_to_end(self.key)

    def _placed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The inputs where graphs read them; those that have a place are copied there."""
        found = list(inputs)
        if self.places:
            moved = [inputs[i] for i in self.places]
            _copy_all([*self.places.values()], moved)
            for i, place in self.places.items():
                found[i] = place
        return found

    def _remember(self, calls: int, graphs: list[Captured]) -> None:
        self.known[self.key] = (calls, graphs)
        if len(self.known) > SETS:
            self.known.popitem(last=False)
        holding = [k for k, (_, found) in self.known.items() if found and k != self.key]
        while len(holding) >= max(1, self.turns):
            del self.known[holding.pop(0)]

    def _capture(self, inputs: Sequence[Tensor], private: bool) -> Captured | None:
        try:
            with torch.inference_mode(False), torch.cuda.device(self.device.where):
                graph = torch.cuda.CUDAGraph()
                # torch refuses a pool whose graphs are all gone
                if not any(graphs for _, graphs in self.known.values()):
                    self.pool = torch.cuda.graph_pool_handle()
                with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                    results = self.program.run(inputs)
        except Exception as error:  # of any library: the steps still run one by one
            _release_generators(self.device.where)
            self.problem = str(error).strip().split("\n")[0]
            warnings.warn(
                f"no CUDA graph, its steps are launched one by one: {self.problem}", stacklevel=2
            )
            return None
        return Captured(graph, results, private)
