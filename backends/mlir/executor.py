"""Runs a lowered program: kernels by address, library steps on arrays, one arena between them.

A program is planned once. A call fills in the addresses of its inputs and of fresh outputs, then
walks the steps. Addresses in the arena and of constants are written into the tables beforehand.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.node import Block, Node
from stack.ir.types import TensorType
from stack.run.cache import Cache

from . import jit
from .library import encode, result_types, step_for, storage_dtype
from .loops import loop

CallOpaque = Callable[[str, Any, Sequence[np.ndarray]], list[np.ndarray]]
# (kernel node) -> native kernel
Load = Callable[[Node], jit.Kernel]


class Value:
    """Where a value is: its storage array, and its address for kernels."""

    __slots__ = ("array", "dtype", "index", "shape", "source")

    def __init__(self, index: int, type_: TensorType, source: str) -> None:
        self.index = index
        self.dtype = storage_dtype(type_.dtype)
        self.shape = tuple(int(s) for s in type_.shape)  # pyright: ignore[reportArgumentType]
        self.source = source  # input, output, static, made, or view:N
        self.array: np.ndarray | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Program:
    """The steps of one block, ready to run."""

    def __init__(
        self,
        block: Block,
        load: Load,
        call_opaque: CallOpaque | None,
        cache: Cache | None = None,
    ) -> None:
        self.block = block
        self.load = load
        self.call_opaque = call_opaque
        self.cache = cache
        self.values: dict[tuple[Node, int], Value] = {}
        self.all: list[Value] = []
        self.steps: list[_Step] = []
        self.lock = threading.Lock()
        self.inputs = [self._value(p, 0, p.tensor, "input") for p in block.params]
        self.outputs: list[tuple[Value, Value]] = []
        self.arena_bytes = 0
        self._plan()

    # ---- planning

    def _value(self, node: Node, item: int, type_: TensorType, source: str) -> Value:
        value = Value(len(self.all), type_, source)
        self.all.append(value)
        self.values[node, item] = value
        return value

    def _plan(self) -> None:
        for node in self.block.nodes:
            self._plan_node(node)
        arena = np.empty(self.arena_bytes + 64, np.uint8)
        start = -arena.ctypes.data % 64
        self.arena = arena
        for value in self.all:
            if value.source.startswith("at:"):
                offset = start + int(value.source[3:])
                raw = arena[offset : offset + value.bytes]
                value.array = raw.view(value.dtype).reshape(value.shape)
                value.source = "static"
        for value in self.all:
            if value.source.startswith("view:"):
                base = self.all[int(value.source[5:])]
                if base.source == "static" and base.array is not None:
                    value.array = base.array.reshape(value.shape)
                    value.source = "static"
        returned: set[int] = set()
        for result in self.block.results:
            value = self.find(result)
            # what a step wrote for the caller is his; anything else is copied out
            root = self.root(value)
            direct = root.source in ("output", "made") and root.index not in returned
            returned.add(root.index)
            out = value if direct else Value(-1, result.tensor, "copy")
            self.outputs.append((value, out))
        for step in self.steps:
            step.bind()

    def root(self, value: Value) -> Value:
        """What a view is a view of."""
        while value.source.startswith("view:"):
            value = self.all[int(value.source[5:])]
        return value

    def find(self, node: Node) -> Value:
        if node.op == "item":
            return self.values[node.args[0], int(node.attrs["index"])]
        return self.values[node, 0]

    def _plan_node(self, node: Node) -> None:
        if node.op in ("item", "param"):
            return
        if node.op == "const":
            value = self._value(node, 0, node.tensor, "static")
            stored = encode(node.attrs["value"].array, node.dtype)
            value.array = np.ascontiguousarray(stored).reshape(value.shape)
            return
        if node.op == "reshape":
            base = self.find(node.args[0])
            self._value(node, 0, node.tensor, f"view:{base.index}")
            return
        args = [self.find(a) for a in node.args]
        if "updates" in node.attrs:
            base = args[int(node.attrs["updates"])]
            out = self._value(node, 0, node.tensor, f"view:{base.index}")
            self.steps.append(_KernelStep(node, args, [out], self.load(node)))
            return
        places = node.attrs.get("at") or (None,) * len(result_types(node))
        if node.op in ("kernel", "fusion"):
            outs = [
                self._placed(node, i, type_, place)
                for i, (type_, place) in enumerate(zip(result_types(node), places, strict=True))
            ]
            if node.op == "kernel":
                self.steps.append(_KernelStep(node, args, outs, self.load(node)))
            else:
                run, name = step_for(node)
                self.steps.append(_ArrayStep(node, args, outs, run, name))
            return
        outs = [self._value(node, i, type_, "made") for i, type_ in enumerate(result_types(node))]
        self.steps.append(_MakingStep(node, args, outs, self._maker(node)))

    def _placed(self, node: Node, item: int, type_: TensorType, place: int | None) -> Value:
        if place is None or place < 0:
            return self._value(node, item, type_, "output")
        value = self._value(node, item, type_, f"at:{place}")
        self.arena_bytes = max(self.arena_bytes, place + value.bytes)
        return value

    def _maker(self, node: Node) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        if node.op == "opaque":
            return self._opaque(node)
        inner = [Program(b, self.load, self.call_opaque, self.cache) for b in node.blocks]
        if node.op == "call":
            return inner[0].run
        if node.op == "cond":
            return lambda args: inner[min(max(int(args[0]), 0), len(inner) - 1)].run(args[1:])
        if node.op == "while":
            test, body = inner
            return loop(test, body, self.cache)
        raise StackError(f"the mlir backend cannot run op {node.op!r}")

    def _opaque(self, node: Node) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        call = self.call_opaque
        if call is None:
            raise StackError(f"{node.attrs['target']} needs its framework, and none was given")
        target, how = str(node.attrs["target"]), node.attrs["call"]
        return lambda args: call(target, how, args)

    # ---- running

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Storage arrays in, fresh storage arrays out."""
        with self.lock:
            results, _ = self._run(inputs, None)
        return results

    def turn(self, state: Sequence[np.ndarray]) -> list[np.ndarray]:
        """As `run`, for a loop: writes into what is `updated`, and gives back what it passes on."""
        with self.lock:
            results, _ = self._run(state, None, keep=True)
        return results

    @property
    def updated(self) -> set[int]:
        """Inputs that a run overwrites."""
        roots = [self.root(s.outs[0]) for s in self.steps if "updates" in s.node.attrs]
        return {i for i, v in enumerate(self.inputs) if v in roots}

    def profile(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Seconds of every step of one run."""
        with self.lock:
            _, times = self._run(inputs, [])
        return times or []

    def _run(
        self, inputs: Sequence[np.ndarray], times: list[float] | None, keep: bool = False
    ) -> tuple[list[np.ndarray], list[float] | None]:
        for value, array in zip(self.inputs, inputs, strict=True):
            # a NumPy scalar has no memory that stays
            value.array = np.asarray(array, order="C")
        for value in self.all:
            if value.source == "output":
                value.array = np.empty(value.shape, value.dtype)
        for value in self.all:
            if value.source.startswith("view:"):
                base = self.all[int(value.source[5:])]
                value.array = base.array.reshape(value.shape) if base.array is not None else None
        for step in self.steps:
            start = time.perf_counter() if times is not None else 0.0
            step.run(self)
            if times is not None:
                times.append(time.perf_counter() - start)
        results: list[np.ndarray] = []
        for value, out in self.outputs:
            found = self.array_of(value)
            kept = keep and self.root(value).source != "static"
            results.append(found if out is value or kept else found.copy())
        # what the caller owns must not be written again
        for value in self.all:
            if value.source != "static":
                value.array = None
        return results, times

    def array_of(self, value: Value) -> np.ndarray:
        if value.array is None and value.source.startswith("view:"):
            value.array = self.array_of(self.all[int(value.source[5:])]).reshape(value.shape)
        assert value.array is not None
        return value.array


class _Step:
    """One step: reads `args`, writes or makes `outs`."""

    library = ""
    code = 0  # address of a kernel's code, which a native loop calls with a table

    def __init__(self, node: Node, args: list[Value], outs: list[Value]) -> None:
        self.node = node
        self.args = args
        self.outs = outs

    def bind(self) -> None:
        """Called once all places are known."""

    def run(self, program: Program) -> None:
        raise NotImplementedError


class _KernelStep(_Step):
    def __init__(
        self, node: Node, args: list[Value], outs: list[Value], kernel: jit.Kernel
    ) -> None:
        super().__init__(node, args, outs)
        self.kernel = kernel
        self.code = kernel.address

    def bind(self) -> None:
        everything = [*self.args, *self.outs]
        self.table = jit.table([0] * len(everything))
        self.address = ctypes.addressof(self.table)
        self.patches: list[tuple[int, Value]] = []
        for slot, value in enumerate(everything):
            if value.source == "static" and value.array is not None:
                self.table[slot] = value.array.ctypes.data
            else:
                self.patches.append((slot, value))

    def run(self, program: Program) -> None:
        for slot, value in self.patches:
            array = value.array if value.array is not None else program.array_of(value)
            self.table[slot] = array.__array_interface__["data"][0]
        self.kernel.raw(self.address)


class _ArrayStep(_Step):
    """A step that writes into the arrays it is given."""

    def __init__(
        self, node: Node, args: list[Value], outs: list[Value], call: Any, library: str
    ) -> None:
        super().__init__(node, args, outs)
        self.call = call
        self.library = library

    def run(self, program: Program) -> None:
        inputs = [program.array_of(v) for v in self.args]
        self.call(inputs, [program.array_of(v) for v in self.outs])


class _MakingStep(_Step):
    """A step that makes its results: control flow, framework calls."""

    def __init__(self, node: Node, args: list[Value], outs: list[Value], call: Any) -> None:
        super().__init__(node, args, outs)
        self.call = call
        self.library = "framework" if node.op == "opaque" else ""

    def run(self, program: Program) -> None:
        inputs = [program.array_of(v) for v in self.args]
        results = self.call(inputs)
        for value, result in zip(self.outs, results, strict=True):
            made = np.ascontiguousarray(result, dtype=value.dtype).reshape(value.shape)
            # a loop gives back operands that it passes on, whose place others take
            kept = any(np.may_share_memory(made, a) for a in inputs)
            value.array = made.copy() if kept else made
            inputs.append(value.array)
