"""Runs a lowered program on one device: kernels and library calls between places in an arena.

A program is planned once: constants are put on the device, intermediates get views of one arena
(at the offsets that the memory pass chose). A call fills in its inputs and fresh outputs, then
launches the steps on the current stream, without waiting for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stack.errors import StackError
from stack.ir.node import Block, Node
from stack.ir.types import TensorType

from .launch import Loaded, cells_for
from .library import DeviceSpace, Launch, allocating
from .steps import KernelStep, LibraryStep, MakingStep, Step, releasing
from .tensors import TORCH_DTYPE, allocate, download, result_types, shape_of, upload
from .values import Value

Tensor = torch.Tensor
CallOpaque = Callable[[str, Any, Sequence[np.ndarray]], list[np.ndarray]]
Load = Callable[[Node], Launch | Loaded]  # a kernel node to what launches it
_ARENA_ALIGNMENT = 64


class Program:
    """The steps of one block, ready to run.

    Args:
        block: kernels, library groups or bare tensor ops, reshapes, control flow; sizes are bound.
        load: gives what launches a `kernel` node: `launch(inputs, outputs)` on dense tensors of
            the device, on the current stream.
        call_opaque: what runs `opaque` nodes, on storage arrays in host memory.
        device: "cuda", "cuda:1" or "cpu".
    """

    def __init__(
        self,
        block: Block,
        load: Load,
        call_opaque: CallOpaque | None,
        device: str | torch.device = "cuda",
    ) -> None:
        self.block = block
        self.load = load
        self.call_opaque = call_opaque
        self.device = torch.device(device)
        self.space = DeviceSpace(self.device)
        self.values: dict[tuple[Node, int], Value] = {}
        self.all: list[Value] = []
        self.steps: list[Step] = []
        self.lock = threading.RLock()
        self.stream: torch.cuda.Stream | None = None
        self.arena_bytes = 0
        self.inputs = [self._value(p, 0, p.tensor, "input") for p in block.params]
        for node in block.nodes:
            self._plan_node(node)
        self._place()
        self.fresh = [v for v in self.all if v.source == "output"]
        self.passing = [v for v in self.all if v.source != "static"]
        self.outputs = self._outputs()
        self.cells = cells_for(len(self.all))
        self._number()
        self.launches = [step.bind(self.cells) for step in self.steps]
        for last, values in self._last_readers().items():
            self.launches[last] = releasing(self.launches[last], values)

    @property
    def capturable(self) -> bool:
        """Whether all steps run on the device, so that a CUDA graph can hold them."""
        return self.device.type == "cuda" and all(step.capturable for step in self.steps)

    @property
    def being_captured(self) -> bool:
        """Whether the current stream records a CUDA graph, ours or somebody else's."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of the results."""
        return self.arena_bytes + sum(v.bytes for v in self.fresh)

    # ---- planning

    def _value(self, node: Node, item: int, type_: TensorType, source: str) -> Value:
        name = self.block.names.get(node) or str(node.attrs.get("name", node.op))
        value = Value(f"%{name}: {type_}", shape_of(type_), TORCH_DTYPE[type_.dtype], source)
        self.all.append(value)
        self.values[node, item] = value
        return value

    def find(self, node: Node) -> Value:
        """Where the value of a node is."""
        if node.op == "item":
            return self.values[node.args[0], int(node.attrs["index"])]
        return self.values[node, 0]

    def _plan_node(self, node: Node) -> None:
        if node.op in ("item", "param"):
            return
        if node.op == "const":
            value = self._value(node, 0, node.tensor, "static")
            held = self.space.leave(self.space.constant(node.attrs["value"]), node.tensor)
            value.tensor = held.contiguous().reshape(value.shape)
            return
        if node.op == "reshape":
            value = self._value(node, 0, node.tensor, "view")
            value.base = self.find(node.args[0])
            return
        args = [self.find(a) for a in node.args]
        if node.op in ("opaque", "call", "cond", "while"):
            outs = [self._value(node, i, t, "made") for i, t in enumerate(result_types(node))]
            self.steps.append(self._making(node, args, outs))
            return
        if node.op == "custom":
            raise StackError(f"no kernel was chosen for the operator {node.attrs.get('target')!r}")
        library = allocating(node, self.space)
        if library is not None:
            made = [self._value(node, 0, node.tensor, "made")]
            self.steps.append(MakingStep(node, args, made, *library, True))
            return
        places = node.attrs.get("at") or (None,) * len(result_types(node))
        outs = [
            self._placed(node, i, type_, place)
            for i, (type_, place) in enumerate(zip(result_types(node), places, strict=True))
        ]
        if node.op == "kernel":
            self.steps.append(KernelStep(node, args, outs, self.load(node)))
        else:
            self.steps.append(LibraryStep(node, args, outs, self.space))

    def _placed(self, node: Node, item: int, type_: TensorType, place: int | None) -> Value:
        if place is None or place < 0:
            return self._value(node, item, type_, "output")
        value = self._value(node, item, type_, "static")
        value.place = place
        self.arena_bytes = max(self.arena_bytes, place + value.bytes)
        return value

    def _place(self) -> None:
        """Views of the arena for intermediates; views of what has a place already."""
        size = self.arena_bytes + _ARENA_ALIGNMENT
        with self._there():
            arena = allocate((size,), torch.uint8, self.device, "the arena of all intermediates")
        start = -arena.data_ptr() % _ARENA_ALIGNMENT
        for value in self.all:
            if value.place is not None:
                raw = arena[start + value.place : start + value.place + value.bytes]
                value.tensor = raw.view(value.dtype).view(value.shape)
        for value in self.all:
            if value.source == "view" and value.base is not None:
                if value.base.source == "static" and value.base.tensor is not None:
                    value.tensor = value.base.tensor.view(value.shape)
                    value.source = "static"

    def _number(self) -> None:
        """A cell for every value; a view has that of its base, whose address it has."""
        for number, value in enumerate(self.all):
            value.cell = number
            if value.source == "static" and value.tensor is not None:
                value.put(value.tensor, self.cells)
        for value in self.all:
            value.cell = value.root.cell

    def _last_readers(self) -> dict[int, list[Value]]:
        """The values that steps make and the program does not give back, by their last reader."""
        last: dict[Value, int] = {}
        for number, step in enumerate(self.steps):
            last.update((v.root, number) for v in (*step.args, *step.outs))
        given = {value.root for value, _ in self.outputs}
        found: dict[int, list[Value]] = {}
        for value in self.all:
            if value.root.source == "made" and value.root not in given and value.root in last:
                found.setdefault(last[value.root], []).append(value)
        return found

    def _outputs(self) -> list[tuple[Value, bool]]:
        """The results, and whether each must be copied: it is not the caller's alone."""
        found: list[tuple[Value, bool]] = []
        taken: set[int] = set()
        for result in self.block.results:
            value = self.find(result)
            root = value.root
            own = root.source in ("output", "made") and id(root) not in taken
            taken.add(id(root))
            found.append((value, not own))
        return found

    def _making(self, node: Node, args: list[Value], outs: list[Value]) -> Step:
        if node.op == "opaque":
            return MakingStep(node, args, outs, self._opaque(node), "framework", False)
        inner = [Program(b, self.load, self.call_opaque, self.device) for b in node.blocks]
        if node.op == "call":
            return MakingStep(node, args, outs, inner[0].run, "", inner[0].capturable)
        if node.op == "cond":

            def choose(values: Sequence[Tensor]) -> list[Tensor]:
                number = min(max(int(values[0]), 0), len(inner) - 1)
                return inner[number].run(values[1:])

            return MakingStep(node, args, outs, choose, "", False)
        test, body = inner

        def loop(values: Sequence[Tensor]) -> list[Tensor]:
            state = list(values)
            while bool(test.run(state)[0]):
                state = body.run(state)
            return state

        return MakingStep(node, args, outs, loop, "", False)

    def _opaque(self, node: Node) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        call = self.call_opaque
        if call is None:
            raise StackError(f"{node.attrs['target']} needs its framework, and none was given")
        target, how = str(node.attrs["target"]), node.attrs["call"]
        entering = [a.tensor for a in node.args]
        leaving = result_types(node)

        def run(values: Sequence[Tensor]) -> list[Tensor]:
            results = call(target, how, download(values, entering))
            return upload(results, leaving, self.device)

        def run_here(values: Sequence[Tensor]) -> list[Tensor]:
            held = [self.space.enter(x, t) for x, t in zip(values, entering, strict=True)]
            found = self.space.op_opaque(node, *held)
            results = found if isinstance(found, tuple) else (found,)
            # what is asked for in host memory goes on here: kernels read this device's memory
            here = [r.to(self.device) if isinstance(r, Tensor) else r for r in results]
            return [self.space.leave(r, t) for r, t in zip(here, leaving, strict=True)]

        # torch works where the tensors are, and draws from that device's generator
        return run_here if target.startswith("torch:") else run

    # ---- running

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Dense tensors of the device in, fresh ones out; the device may still be at work."""
        with self.lock, self.here() as stream:
            return self._run(inputs, stream, None)

    def profile(self, inputs: Sequence[Tensor]) -> list[float]:
        """Seconds of every step of one run, on the device."""
        marks: list[Any] = []
        with self.lock, self.here() as stream:
            self._run(inputs, stream, marks)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
                return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]
        return [b - a for a, b in pairwise(marks)]

    @contextmanager
    def here(self) -> Iterator[int]:
        """On the program's device, after whatever used the arena before on another stream.

        Gives the handle of the current stream, 0 on a CPU.
        """
        with torch.no_grad(), self._there():
            yield self.follow()

    def _there(self) -> Any:
        """The context in which the program's device is the current one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def follow(self) -> int:
        """Make the current stream wait for the one that used the arena last; its handle."""
        if self.device.type != "cuda":
            return 0
        current = torch.cuda.current_stream(self.device)
        # a capture begins with the device idle, and may not wait for what is outside of it
        if not self.being_captured:
            if self.stream is not None and self.stream != current:
                current.wait_stream(self.stream)
            self.stream = current
        return current.cuda_stream

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _run(self, inputs: Sequence[Tensor], stream: int, marks: list[Any] | None) -> list[Tensor]:
        cells = self.cells
        for value, tensor in zip(self.inputs, inputs, strict=True):
            value.put(tensor, cells)
        try:
            for value in self.fresh:
                value.put(allocate(value.shape, value.dtype, self.device, value.what), cells)
            for launch in self.launches:
                if marks is not None:
                    marks.append(self._mark())
                launch(stream)
            if marks is not None:
                marks.append(self._mark())
            return [v.get().clone() if copied else v.get() for v, copied in self.outputs]
        finally:
            # what the caller owns must not be held, let alone written again
            for value in self.passing:
                value.tensor = None
