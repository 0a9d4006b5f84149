"""CUDA graphs of a program: a call copies inputs that moved and launches all steps at once.

A graph reads and writes fixed addresses, so each call compares the addresses of all inputs. A small
input that arrives at a new address gets a buffer of its own, into which later calls copy it. For
large inputs, each set of addresses has its own graphs. A graph's results are returned without a
copy once nobody references those of its last replay. Two graphs alternate; if the results of both
are still referenced, a third graph is replayed and its results are copied. No result is ever
overwritten while its owner has it.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import torch

from stack.frameworks.torch_captures import recovering
from stack.frameworks.torch_private import copy_all, memory_id, uses_of_memory
from stack.ranges import recording
from stack.run.backend import AddressProgram

from ..device.launch import LoadedKernel
from ..device.tensors import ALIGNMENT
from ..device.torch_device import TorchDevice
from ..runtime.plan import KernelStep
from ..runtime.program import BlockProgram
from .callers_memory import address_program, callers_values

Tensor = torch.Tensor
WARM = 2  # calls with the same addresses before a graph is captured
TURNS = 2  # graphs per set of addresses whose results are returned without a copy
SETS = 32  # sets of addresses that are remembered
# memory of results that all graphs of a program may keep alive: KEEP bytes, or on a GPU, if it is
# more, 1 / SHARE of its memory (a training step keeps what its backward pass reads)
KEEP = 1 << 28
SHARE = 16
# bytes of an input whose copy takes about as long as the launch of one step, and the most steps
# that count: a longer copy keeps the device busy for longer than a graph saves
COPIED = 1 << 22
MOST_STEPS = 16


_address = Tensor.data_ptr
# calls and graphs of a set of addresses that is not remembered
_NONE: tuple[int, list[CapturedGraph]] = 0, []
# the reference count of a storage: the tensors over it, including views, and this module
_holders = uses_of_memory
# copies a list of tensors into another list, in one launch if their dtypes are equal
_copy_all: Any = copy_all


class CapturedGraph:
    """A captured CUDA graph, and the result tensors that each replay overwrites.

    If it is `private`, replays return copies of the results, else tensors over their memory.
    """

    def __init__(self, graph: Any, results: list[Tensor], private: bool = False) -> None:
        self.graph = graph
        self.results = results
        self.private = private
        self.storages: list[Any] = [r.untyped_storage() for r in results]
        places = map(memory_id, results)
        self.alone = [(place, _holders(place)) for place in places]

    @property
    def is_free(self) -> bool:
        """True if a replay overwrites nothing that is still referenced."""
        return self.private or all(_holders(place) == count for place, count in self.alone)

    def replay(self) -> list[Tensor]:
        self.graph.replay()
        if self.private:
            return [r.clone() for r in self.results]
        # return other tensors over the same memory, so that their owners are counted
        return [r.detach() for r in self.results]


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return KEEP
    return max(KEEP, torch.cuda.get_device_properties(device).total_memory // SHARE)


class Replays:
    """Runs a program through CUDA graphs if possible, else step by step.

    `problem` is the reason why no graph is captured any more; "" if there is none.
    """

    def __init__(self, program: BlockProgram) -> None:
        assert isinstance(program.device, TorchDevice)
        self.program, self.device = program, program.device
        self.known: OrderedDict[tuple[int, ...], tuple[int, list[CapturedGraph]]] = OrderedDict()
        self.at: list[int] = []  # addresses of the inputs of the last call
        self.key: tuple[int, ...] = ()  # addresses of the inputs that are not copied
        self.places: dict[int, Tensor] = {}  # buffers of inputs that moved, by input number
        # bytes of an input up to which a copy costs less than separate launches
        self.copied = COPIED * min(len(program.steps), MOST_STEPS)
        size = sum(v.bytes for v in program.results)
        # number of sets of addresses that memory allows
        self.turns = _budget(self.device.where) // ((TURNS + 1) * max(size, 1))
        self.pool: Any = None
        self.problem = "" if self.device.is_gpu and program.capturable else "a step needs the host"
        if not self.problem and not self.turns:
            self.problem = f"its results take {size} bytes, too many for its graphs to keep alive"

    def by_address(self) -> AddressProgram | None:
        """Returns how to launch a program of one kernel on the caller's memory; None for others.

        A launch takes no longer than the replay of a graph; nothing is copied or kept alive.
        """
        match self.program.steps:
            case [KernelStep(kernel=LoadedKernel())] if self.program.enter is None:
                found = callers_values(self.program)
            case _:
                found = None
        if found is None or found[1]:
            return None
        device = self.device
        made = address_program(self.program, *found, device.follow)
        where = str(device.where)
        return replace(made, device=where, alignment=ALIGNMENT, is_current=device.is_current)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Takes dense tensors of the device and returns tensors that the caller owns."""
        return self._run([*map(_address, inputs)], inputs.__getitem__)

    def call_dense(self, at: list[int], array: Callable[[int], Tensor]) -> list[Tensor] | None:
        """Like `run`, by the addresses of dense inputs; None if kernels cannot read one of these.

        Args:
            at: addresses of the inputs.
            array: returns the input with a number; replays ask for those that are copied only.
        """
        return None if reduce(or_, at, 0) % ALIGNMENT else self._run(at, array)

    def _run(self, at: list[int], array: Callable[[int], Tensor]) -> list[Tensor]:
        everything = range(len(at))
        with self.program.lock:
            if self.problem or self.device.being_captured or recording() is not None:
                return self.program.run([*map(array, everything)])
            if at != self.at:
                self._move(at, array)
            calls, graphs = self.known.get(self.key, _NONE)
            if calls < WARM:
                self._remember(calls + 1, graphs)
                return self.program.run([*map(array, everything)])
            self.device.follow()
            if self.places:
                with torch.no_grad():
                    _copy_all([*self.places.values()], [*map(array, self.places)])
            free = next((g for g in graphs if g.is_free), None)
            if free is None:
                placed = [self.places[i] if i in self.places else array(i) for i in everything]
                free = self._capture(placed, private=len(graphs) == TURNS)
                if free is None:
                    return self.program.run(placed)
                self._remember(calls, [*graphs, free])
            return free.replay()

    def _move(self, at: list[int], array: Callable[[int], Tensor]) -> None:
        """Adopt new addresses `at` of the inputs; give small inputs that moved a buffer each.

        Later calls copy these inputs to their buffers. Earlier graphs are dropped then, since they
        read the old addresses.
        """
        moved = [i for i, (now, then) in enumerate(zip(at, self.at)) if now != then]
        sizes = [value.bytes for value in self.program.inputs]
        fresh = [i for i in moved if i not in self.places and sizes[i] <= self.copied]
        with torch.inference_mode(False):  # else they were writable in inference mode only
            self.places |= {i: torch.empty_like(array(i)) for i in fresh}
        if fresh:
            self.known.clear()  # these graphs read the inputs at their old addresses
        self.at = at
        self.key = tuple(a for i, a in enumerate(at) if i not in self.places)
        if self.key in self.known:
            self.known.move_to_end(self.key)

    def _remember(self, calls: int, graphs: list[CapturedGraph]) -> None:
        self.known[self.key] = (calls, graphs)
        if len(self.known) > SETS:
            self.known.popitem(last=False)
        holding = [k for k, (_, found) in self.known.items() if found and k != self.key]
        while len(holding) >= max(1, self.turns):
            del self.known[holding.pop(0)]

    def _capture(self, inputs: Sequence[Tensor], private: bool) -> CapturedGraph | None:
        try:
            where = self.device.where
            with torch.inference_mode(False), torch.cuda.device(where), recovering(where):
                graph = torch.cuda.CUDAGraph()
                # torch refuses a pool all of whose graphs are gone
                if not any(graphs for _, graphs in self.known.values()):
                    self.pool = torch.cuda.graph_pool_handle()
                with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                    results = self.program.run(inputs)
        except Exception as error:  # from any library: the steps can still run one by one
            self.problem = str(error).strip().split("\n")[0]
            warnings.warn(
                f"no CUDA graph, its steps are launched one by one: {self.problem}", stacklevel=2
            )
            return None
        return CapturedGraph(graph, results, private)
