"""Custom calls of XLA that run kernels and loops of kernels: a native handler, and its plans."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Sequence
from itertools import chain

from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_kernel
from stack.run.cache import Cache
from stack.run.foreign import ForeignCall, Value, value_of

from ..mlir import jit
from ..mlir.control_flow import ControlFlow
from ..mlir.host import address
from ..runtime.device import Array
from ..runtime.program import BlockProgram
from .foreign_memory import ForeignMemory, Place, bytes_of
from .xla_call_text import CALL, MOVE, SYMBOL, text

VERSION = 0, 1  # of XLA's interface: the oldest minor version with all that the handler uses

_lock = threading.Lock()
_handlers: list[jit.NativeKernel] = []  # for this process: empty before the first call


def handler(cache: Cache | None) -> jit.NativeKernel:
    """Returns the compiled handler; compiles it at the first call."""
    with _lock:
        if not _handlers:
            made = text(*VERSION, is_x86=platform.machine() == "x86_64")
            _handlers.append(jit.build(made, [SYMBOL], cache, optimized=True)[SYMBOL])
    return _handlers[0]


class NativeSteps:
    """`stack.run.backend.ForeignSteps` for native kernels.

    Args:
        func: the lowered function.
        program: its program, which contains the compiled loops.
        load: returns the kernel of a node.
        cache: for the compiled handler.
    """

    platform = "cpu"

    def __init__(
        self,
        func: Func,
        program: BlockProgram,
        load: Callable[[Node], jit.NativeKernel],
        cache: Cache | None,
    ) -> None:
        self.func, self.load, self.cache = func, load, cache
        self.programs = program
        kernels = program.kernels().items()
        self.flows = {n: k for n, k in kernels if isinstance(k, ControlFlow)}

    def takes(self, node: Node) -> bool:
        return is_kernel(node) or node in self.flows

    def call(
        self, nodes: Sequence[Node], given: Sequence[Value], wanted: Sequence[Value]
    ) -> ForeignCall:
        native = handler(self.cache)
        plan = _Plan(nodes, given, wanted, self.programs.device.constant)
        for node in nodes:
            if node in self.flows:
                plan.control(node, self.flows[node])
            else:
                plan.kernel(node, self.load(node))
        memory, numbers = plan.memory, jit.table(plan.numbers())
        keep = native, numbers, plan.constants, self
        where = ctypes.addressof(numbers)
        return ForeignCall(native.address, where, memory.scratch, memory.updates, keep)


class _Plan:
    """The steps of one call, as numbers."""

    def __init__(
        self,
        nodes: Sequence[Node],
        given: Sequence[Value],
        wanted: Sequence[Value],
        constant: Callable[[Node], Array],
    ) -> None:
        self.constants: list[Array] = []
        self.nodes, self.given, self.wanted = nodes, given, wanted
        self.make = constant
        self.memory = ForeignMemory(nodes, given, wanted, self._constant)
        self.steps: list[list[int]] = []
        self.longest = 1

    def numbers(self) -> list[int]:
        """Returns the plan in the form that the handler reads."""
        results = len(self.wanted) + bool(self.memory.scratch)
        head = len(self.given), results, len(self.steps), self.longest, 0
        return [*head, *chain(*self.steps)]

    def kernel(self, node: Node, kernel: jit.NativeKernel) -> None:
        """Adds a call of a kernel."""
        places = [self.memory.place(a) for a in node.args]
        outs = [self.memory.of((node, i)) for i in range(len(node.types))]
        if "updates" in node.attrs:
            number = int(node.attrs["updates"])
            self._take_over(value_of(node.args[number]), (node, 0), node)
            places[number] = outs[0]
        self._call(kernel.address, [*places, *outs])

    def control(self, node: Node, flow: ControlFlow) -> None:
        """Adds a call of control flow, with scratch memory of its own: XLA may run several calls
        of one program at a time.
        """
        args = [self.memory.place(a) for a in node.args]
        for result, number in flow.updated.items():
            operand = value_of(node.args[number])
            if self._reads(operand, self.nodes.index(node)) == 1:
                self.memory.overwrite(operand, (node, result))
        outs = [self.memory.of((node, i)) for i in flow.read]
        scratch, fixed = self.memory.new(flow.scratch), [(0, at) for at in flow.fixed[1:]]
        self._call(flow.address, [*args, *outs, scratch, *fixed])

    def _take_over(self, old: Value, new: Value, node: Node) -> None:
        """Copies the value that a node overwrites, if that belongs to XLA or is needed later."""
        here, there = self.memory.of(old), self.memory.of(new)
        if here == there:
            return
        if self._reads(old, self.nodes.index(node)) == 1:
            self.memory.overwrite(old, new)
        self._move(there, here, bytes_of(new))

    def _reads(self, value: Value, start: int) -> int:
        """Returns how often nodes from number `start` on read a value."""
        return sum(value_of(a) == value for n in self.nodes[start:] for a in n.args)

    def _constant(self, node: Node) -> int:
        made = self.make(node)
        self.constants.append(made)
        return address(made)

    def _call(self, code: int, places: Sequence[Place]) -> None:
        self.longest = max(self.longest, len(places))
        self.steps.append([CALL, code, len(places), *chain(*places)])

    def _move(self, target: Place, source: Place, size: int) -> None:
        self.steps.append([MOVE, *target, *source, size])
