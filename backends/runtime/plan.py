"""The plan of a block: a value for each result, a step for each node that executes, one arena.

A step reads some values and writes or allocates others.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stack.errors import StackError
from stack.ir.memory import reused
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_kernel
from stack.ir.types import TensorType
from stack.run.foreign import Value, values_read

from .control import CONTROL
from .device import (
    Array,
    Bound,
    CallOpaque,
    Device,
    DeviceKernel,
    Fill,
    LibraryCall,
    Load,
    Make,
    RuntimeValue,
)

ALIGNMENT = 64  # bytes, of the arena
LARGE = 1 << 17  # bytes: allocators return at least this to the system (glibc's mmap threshold)


@dataclass(eq=False)
class RuntimeStep:
    """One step. `library` names the library it calls. `capturable`: a CUDA graph can contain it."""

    node: Node
    args: Sequence[RuntimeValue]
    outs: Sequence[RuntimeValue]
    library: str = field(default="", kw_only=True)
    capturable: bool = field(default=True, kw_only=True)

    def bind(self, device: Device) -> Bound:
        """Returns the function that executes the step, once all arrays in the arena are known."""
        raise NotImplementedError

    def no_memory(self, device: Device, error: Exception) -> StackError:
        """Returns the error to raise if the library of this step ran out of memory.

        It names the results that the memory was for.
        """
        asked = sum(v.bytes for v in self.outs)
        names = ", ".join(v.what for v in self.outs)
        what = f"{self.library or self.node.op} for {names}"
        return StackError(device.shortage(error, asked, what))


class OnArrays:
    """A kernel that is called with two lists of arrays: those it reads, and those it writes."""

    def __init__(self, launch: Fill) -> None:
        self.launch = launch

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        return lambda _: self.launch([v.get() for v in args], [v.get() for v in outs])


@dataclass(eq=False)
class KernelStep(RuntimeStep):
    """A step that launches one of our kernels."""

    kernel: DeviceKernel

    def bind(self, device: Device) -> Bound:
        return self.kernel.bind(self.args, self.outs)


@dataclass(eq=False)
class FillingStep(RuntimeStep):
    """A library call that writes its results into arrays that exist already."""

    fill: Fill

    def bind(self, device: Device) -> Bound:
        def run(_: int) -> None:
            try:
                self.fill([v.get() for v in self.args], [v.get() for v in self.outs])
            except device.out_of_memory as error:
                raise self.no_memory(device, error) from error

        return run


@dataclass(eq=False)
class MakingStep(RuntimeStep):
    """A step that allocates its results: control flow, a framework call, or a library call.

    `dropped`: numbers of the results that nobody reads.
    """

    make: Make
    dropped: Container[int] = ()

    def bind(self, device: Device) -> Bound:
        def run(stream: int) -> None:
            arrays = [v.get() for v in self.args]
            try:
                results = self.make(arrays, stream)
            except device.out_of_memory as error:
                raise self.no_memory(device, error) from error
            taken = {device.address(a) for a in arrays}
            for number, (value, made) in enumerate(zip(self.outs, results, strict=True)):
                if number in self.dropped:
                    continue
                # a loop returns operands that it passes on; another value may reuse their memory
                address = device.address(made)
                own = device.copy(made) if address in taken else made
                taken.add(address)
                value.put(own.reshape(value.shape))

        return run


def allocating(launch: Bound, values: Sequence[tuple[RuntimeValue, Callable[[], Array]]]) -> Bound:
    """Returns a function that allocates the arrays of some values and then calls `launch`.

    `values` are the results that no earlier step writes, each with its allocator.
    """

    def run(stream: int) -> None:
        for value, allocate in values:
            value.put(allocate())
        launch(stream)

    return run


def releasing(launch: Bound, values: Sequence[RuntimeValue]) -> Bound:
    """Returns a function that calls `launch`, then drops the arrays of values.

    No later step reads these values.
    """

    def run(stream: int) -> None:
        launch(stream)
        for value in values:
            value.array = None

    return run


class Plan:
    """Values and steps of one block. Constants, and an arena that is kept, are put on the device
    here.

    Args:
        block: kernels, library groups or bare ops, reshapes, control flow. Its sizes are bound.
        device: the device that the block runs on.
        load: returns the loaded kernel of a `kernel` node.
        call_opaque: executes `opaque` nodes.
        control: returns the function that executes a control flow node, and True if a CUDA graph
            can contain it.
        keeps: True if the arena is allocated once, and not at each call.
    """

    def __init__(
        self,
        block: Block,
        device: Device,
        load: Load,
        call_opaque: CallOpaque | None,
        control: Callable[[Node], tuple[Make, bool]],
        keeps: bool = True,
    ) -> None:
        self.block = block
        self.device = device
        self.load = load
        self.call_opaque = call_opaque
        self.control = control
        self.keeps = keeps
        self.values: dict[tuple[Node, int], RuntimeValue] = {}
        self.all: list[RuntimeValue] = []
        self.steps: list[RuntimeStep] = []
        self.arena_bytes = 0
        self.inputs = [self._value(p, 0, p.tensor, "input") for p in block.params]
        for node in block.nodes:
            self._add(node)
        self.placed = [v for v in self.all if v.place is not None]
        if keeps:
            self.arena()
            for value in self.placed:
                value.get()
            for value in self.all:  # views of static values are static
                base = value.base
                if value.source == "view" and base is not None and base.source == "static":
                    value.array = base.get().reshape(value.shape)
                    value.source = "static"
        self.results = [self.find(r) for r in block.results]

    @cached_property
    def read(self) -> set[Value]:
        """The values of the block that its steps read."""
        return values_read(self.block)

    def find(self, node: Node) -> RuntimeValue:
        """Returns the runtime value that a node of the block has; for an `item`, of its tuple."""
        if is_item(node):
            return self.values[node.args[0], int(node.attrs["index"])]
        return self.values[node, 0]

    def first_writers(self) -> dict[int, list[RuntimeValue]]:
        """Large outputs that the first step does not write, by the number of the step that does.

        They are allocated just before that step.
        """
        found: dict[int, list[RuntimeValue]] = {}
        seen: set[RuntimeValue] = set()
        for number, step in enumerate(self.steps):
            for value in step.outs:
                is_late = number > 0 and value not in seen
                if value.source == "output" and is_late and value.bytes >= LARGE:
                    found.setdefault(number, []).append(value)
                seen.add(value)
        return found

    def last_readers(self) -> dict[int, list[RuntimeValue]]:
        """Values to free, by the number of the step that reads them last.

        These are values made by steps, and large inputs that the last step does not read. Results
        of the block are not among them.
        """
        last: dict[RuntimeValue, int] = {}
        for number, step in enumerate(self.steps):
            last.update((v.root, number) for v in (*step.args, *step.outs))
        given = {value.root for value in self.results}
        found: dict[int, list[RuntimeValue]] = {}
        for value in self.all:
            root = value.root
            if root not in last or root in given:
                continue
            is_spent = last[root] < len(self.steps) - 1 and root.bytes >= LARGE
            if root.source == "made" or (root.source == "input" and is_spent):
                found.setdefault(last[root], []).append(value)
        return found

    def _value(
        self,
        node: Node,
        item: int,
        type_: TensorType,
        source: str,
        base: RuntimeValue | None = None,
    ) -> RuntimeValue:
        name = self.block.names.get(node) or str(node.attrs.get("name", node.op))
        shape = tuple(int(s) for s in type_.shape)  # pyright: ignore[reportArgumentType]
        dtype = self.device.dtype(type_.dtype)
        value = RuntimeValue(f"%{name}: {type_}", shape, dtype, source, self.device.address, base)
        self.all.append(value)
        self.values[node, item] = value
        return value

    def _add(self, node: Node) -> None:
        if node.op in ("item", "param"):
            return
        if node.op == "const":
            value = self._value(node, 0, node.tensor, "static")
            value.array = self.device.constant(node).reshape(value.shape)
            return
        args = [self.find(a) for a in node.args]
        if node.op == "reshape":
            self._value(node, 0, node.tensor, "view", args[0])
        elif node.op == "custom":
            self._add_library(node, args, self.device.hosted(node))
        elif is_kernel(node):
            self.steps.append(KernelStep(node, args, self._written(node, args), self.load(node)))
        elif node.op in CONTROL:
            self._add_control(node, args)
        elif node.op == "opaque":
            make, outs, unread = self._opaque(node), self._made(node), self._unread(node)
            step = MakingStep(node, args, outs, make, unread, library="framework", capturable=False)
            self.steps.append(step)
        else:
            self._add_library(node, args, self.device.library(node))

    def _add_library(self, node: Node, args: Sequence[RuntimeValue], found: LibraryCall) -> None:
        if found.make is not None:
            step = MakingStep(node, args, self._made(node), found.make)
        else:
            assert found.fill is not None
            step = FillingStep(node, args, self._written(node, args), found.fill)
        step.library, step.capturable = found.name, found.capturable
        self.steps.append(step)

    def _add_control(self, node: Node, args: Sequence[RuntimeValue]) -> None:
        unread = self._unread(node)
        read = [i for i in range(len(node.types)) if i not in unread]
        kernel = self.device.control(node, read, self.load)
        if kernel is not None:
            outs = [self._computed(node, i, args) for i in read]
            self.steps.append(KernelStep(node, args, outs, kernel))
            return
        make, capturable = self.control(node)
        outs = self._made(node)
        self.steps.append(MakingStep(node, args, outs, make, unread, capturable=capturable))

    def _computed(self, node: Node, item: int, args: Sequence[RuntimeValue]) -> RuntimeValue:
        """Returns the value of a result of compiled control flow: fresh, or that of an operand."""
        number = reused(node).get(item)
        if number is None:
            return self._value(node, item, node.types[item], "output")
        return self._value(node, item, node.types[item], "view", args[number])

    def _opaque(self, node: Node) -> Make:
        if self.call_opaque is None:
            raise StackError(f"{node.attrs['target']} needs its framework, and none was given")
        return self.device.opaque(node, self.call_opaque)

    def _unread(self, node: Node) -> set[int]:
        """Returns the numbers of a node's results that no step reads, such as a loop's counter."""
        return {i for i in range(len(node.types)) if (node, i) not in self.read}

    def _made(self, node: Node) -> list[RuntimeValue]:
        return [self._value(node, i, type_, "made") for i, type_ in enumerate(node.types)]

    def _written(self, node: Node, args: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """Returns the values that a kernel or library node writes, one per result.

        Their memory is an operand that is updated in place, a part of the arena, or a fresh
        allocation.
        """
        if "updates" in node.attrs:
            return [self._value(node, 0, node.tensor, "view", args[int(node.attrs["updates"])])]
        made: list[RuntimeValue] = []
        places = node.attrs.get("at") or (-1,) * len(node.types)
        for item, (type_, place) in enumerate(zip(node.types, places, strict=True)):
            if place < 0:
                made.append(self._value(node, item, type_, "output"))
                continue
            value = self._value(node, item, type_, "static" if self.keeps else "arena")
            value.place = place
            self.arena_bytes = max(self.arena_bytes, place + value.bytes)
            made.append(value)
        return made

    def arena(self) -> None:
        """Allocates an arena, and places the intermediates in it."""
        if not self.placed:
            return
        arena = self.device.memory(self.arena_bytes + ALIGNMENT, "the arena of all intermediates")
        address = self.device.address(arena)
        start = -address % ALIGNMENT
        for value in self.placed:
            value.put_in(arena, start, address + start)
