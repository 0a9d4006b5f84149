"""Custom calls of XLA that launch kernels on XLA's stream and buffers.

The native handler of backend `mlir` runs a call if all its kernels are launched through the driver.
It also repeats the launches of hand-written kernels. Kernels that Python launches, and machines
without the bindings of MLIR, have a handler that XLA calls back through ctypes; its attribute is
the number of a plan. XLA may capture a call in a CUDA graph; then it calls the handler only to
capture it again.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_kernel
from stack.run.foreign import ForeignCall, Value, value_of
from stack.wings import part

from ..device.driver import check, driver
from ..device.launch import LoadedKernel
from ..device.torch_device import TorchDevice
from ..runtime.device import Bound, DeviceKernel, Fill, Table
from ..runtime.plan import OnArrays
from ..runtime.program import BlockProgram
from .counted_loops import CountedLoop, counted_loop
from .foreign_memory import ForeignMemory, Place, bytes_of
from .hand_kernels import recorded
from .native_launches import NativeLaunches, handler
from .recorded_launches import Recorded
from .xla_frame import Frame, Handler

Tensor = torch.Tensor
# a step of a call: takes the addresses of its arrays, 0 first, and the stream
Step = Callable[[Sequence[int], int], None]


class DeviceSteps:
    """`stack.run.foreign.ForeignSteps` for the kernels of a program on a torch device."""

    def __init__(self, func: Func, program: BlockProgram) -> None:
        self.func, self.program = func, program
        self.loops: dict[Node, CountedLoop | None] = {}
        self.hands: dict[Node, Recorded | None] = {}
        assert isinstance(program.device, TorchDevice)
        self.device = program.device
        self.platform = "CUDA" if self.device.is_gpu else "cpu"

    def takes(self, node: Node) -> bool:
        return is_kernel(node) or self._loop(node) is not None or self._hand(node) is not None

    def _hand(self, node: Node) -> Recorded | None:
        """Returns the launches of a hand-written kernel; None if Python has to make them."""
        if node not in self.hands:
            is_native = node.op == "custom" and self._are_native
            self.hands[node] = self._recorded(node) if is_native else None
        return self.hands[node]

    @cached_property
    def _are_native(self) -> bool:
        """True if the native handler launches all kernels of the program."""
        kernels = self.program.kernels().values()
        is_loaded = self.device.is_gpu and all(isinstance(k, LoadedKernel) for k in kernels)
        return is_loaded and handler() is not None

    def _recorded(self, node: Node) -> Recorded | None:
        kernel, attributes = part("ops", "kernel-call")(node, "cuda")
        if not kernel.capturable:
            return None
        types = [a.tensor for a in node.args]
        return recorded(partial(kernel, **attributes), types, node.types, self.device)

    def _loop(self, node: Node) -> CountedLoop | None:
        if node not in self.loops:
            self.loops[node] = counted_loop(node)
        return self.loops[node]

    def call(
        self, nodes: Sequence[Node], given: Sequence[Value], wanted: Sequence[Value]
    ) -> ForeignCall:
        loops = {n: loop for n in nodes if (loop := self._loop(n)) is not None}
        found = [
            *(n for n in nodes if n not in loops and n.op != "custom"),
            *(n for x in loops.values() for n in x.kernels),
        ]
        hands = {n: made for n in nodes if (made := self._hand(n)) is not None}
        kernels = {node: self.program.load(node) for node in found}
        native = None
        if self.device.is_gpu and all(isinstance(k, LoadedKernel) for k in kernels.values()):
            native = handler()
        steps = _Called(self.device) if native is None else NativeLaunches(self.device.where)

        def data(node: Node) -> int:
            made = self.device.constant(node)
            steps.kept.append(made)
            return made.data_ptr()

        memory = ForeignMemory(nodes, given, wanted, data)
        planned = _Planned(steps, memory, kernels, hands)
        read = {value_of(a) for node in nodes for a in node.args}.union(wanted)
        for node in nodes:
            if node in loops:
                loops[node].add(planned, read)
            else:
                planned.step(node)
        if isinstance(steps, _Called):
            number = next(_numbers)
            _plans[number] = steps
            address = ctypes.cast(_handler, ctypes.c_void_p).value or 0
            return ForeignCall(address, number, memory.scratch, memory.updates, (steps, self))
        assert native is not None
        numbers = steps.numbers(len(given), len(wanted) + bool(memory.scratch))
        keep = steps, numbers, native, self
        at = ctypes.addressof(numbers)
        return ForeignCall(native.address, at, memory.scratch, memory.updates, keep)


class _Planned:
    """The steps of one call and their memory; `counted_loops.CallSteps`."""

    def __init__(
        self,
        steps: _Called | NativeLaunches,
        memory: ForeignMemory,
        kernels: Mapping[Node, DeviceKernel],
        hands: Mapping[Node, Recorded],
    ) -> None:
        self.steps, self.memory, self.kernels, self.hands = steps, memory, kernels, hands

    def step(self, node: Node) -> None:
        """Adds a kernel of the program, after a copy of a value that it overwrites."""
        memory = self.memory
        places = [memory.place(a) for a in node.args]
        outs = [memory.of((node, i)) for i in range(len(node.types))]
        if "updates" in node.attrs:
            number = int(node.attrs["updates"])
            if places[number] != outs[0]:
                memory.overwrite(value_of(node.args[number]), (node, 0))
                self.copy(outs[0], places[number], bytes_of((node, 0)))
            places[number] = outs[0]
        if node in self.hands:
            self.hand(self.hands[node], places, outs)
        else:
            self.kernel(node, places, outs)

    def hand(self, made: Recorded, places: Sequence[Place], outs: Sequence[Place]) -> None:
        """Adds the launches of a hand-written kernel; its other arrays are scratch memory."""
        assert isinstance(self.steps, NativeLaunches)
        own = dict(zip(made.results, outs, strict=True)) | dict(enumerate(places))
        held = [own.get(i) or self.memory.new(size) for i, size in enumerate(made.sizes)]
        self.steps.recorded(made.steps, held)

    def kernel(self, node: Node, places: Sequence[Place], outs: Sequence[Place]) -> None:
        kernel = self.kernels[node]
        if isinstance(kernel, LoadedKernel):
            self.steps.kernel(kernel, [*places, *outs])
        else:
            assert isinstance(kernel, OnArrays)
            assert isinstance(self.steps, _Called)
            self.steps.on_tensors(kernel.launch, node, places, outs)

    def copy(self, target: Place, source: Place, size: int) -> None:
        if target != source:
            self.steps.copy(target, source, size)


class _Called:
    """The steps of one call, as Python functions."""

    def __init__(self, device: TorchDevice) -> None:
        self.device = device
        self.kept: list[object] = []
        self.steps: list[Step] = []
        self.lock = threading.Lock()  # the tables of addresses are those of one call

    def kernel(self, kernel: LoadedKernel, places: Sequence[Place]) -> None:
        """Adds a launch of a kernel on arrays, given by memory."""
        self.steps.append(_launching(kernel, places))

    def on_tensors(
        self, launch: Fill, node: Node, places: Sequence[Place], outs: Sequence[Place]
    ) -> None:
        """Adds a call of a kernel on tensors, on the current stream of torch."""
        inputs = self._tensors(places, [a.tensor for a in node.args])
        outputs = self._tensors(outs, node.types)
        self.steps.append(_on_tensors(launch, inputs, outputs))

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Launches all steps."""
        held = [0, *addresses]
        with self.lock:
            for step in self.steps:
                step(held, stream)

    def copy(self, target: Place, source: Place, size: int) -> None:
        """Adds a copy of memory."""

        def copy(arrays: Sequence[int], stream: int) -> None:
            to, start = (arrays[number] + offset for number, offset in (target, source))
            if to == start or not size:
                return
            if self.device.is_gpu:
                (status,) = driver().cuMemcpyDtoDAsync(to, start, size, stream)
                check(status, "copying a value that a kernel overwrites")
            else:
                ctypes.memmove(to, start, size)

        self.steps.append(copy)

    def _tensors(
        self, places: Sequence[Place], types: Sequence[Any]
    ) -> Callable[[Sequence[int]], list[Tensor]]:
        kinds = [(tuple(map(int, t.shape)), self.device.dtype(t.dtype)) for t in types]

        def tensors(arrays: Sequence[int]) -> list[Tensor]:
            return [
                tensor_at(arrays[number] + offset, shape, dtype, self.device.where)
                for (number, offset), (shape, dtype) in zip(places, kinds, strict=True)
            ]

        return tensors


def _launching(kernel: LoadedKernel, places: Sequence[Place]) -> Step:
    """Returns a step that launches a kernel through the driver."""
    cells: list[Table] = [(ctypes.c_uint64 * 1)() for _ in places]
    launch: Bound = kernel.launcher(cells)
    slots = [(cell, number, offset) for cell, (number, offset) in zip(cells, places, strict=True)]

    def run(arrays: Sequence[int], stream: int) -> None:
        for cell, number, offset in slots:
            cell[0] = arrays[number] + offset
        launch(stream)

    return run


def _on_tensors(launch: Fill, inputs: Any, outputs: Any) -> Step:
    """Returns a step that calls a kernel on tensors, on the current stream of torch."""

    def run(arrays: Sequence[int], stream: int) -> None:
        given, made = inputs(arrays), outputs(arrays)
        if stream:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                launch(given, made)
        else:
            launch(given, made)

    return run


class _Memory:
    """Bytes at an address of a GPU, as an object that torch reads."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def tensor_at(
    address: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns a tensor over memory that somebody else owns."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    if not size:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cuda":
        held = torch.as_tensor(_Memory(address, size), device=device)
    else:
        held = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    return held.view(dtype).view(shape)


_numbers = itertools.count(1)
_plans: weakref.WeakValueDictionary[int, _Called] = weakref.WeakValueDictionary()


def _run(address: int) -> int:
    """Runs a call of XLA; returns 0, or an error of XLA."""
    frame = Frame(address)
    if frame.answer():
        return 0
    try:
        plan = _plans[frame.plan]
        stream = frame.stream() if plan.device.is_gpu else 0
        plan.run(frame.addresses, stream)
    except BaseException as error:
        return frame.error(f"{type(error).__name__}: {error}")
    return 0


_handler = Handler(_run)
