"""Runs a lowered program on one device: kernels and library calls on memory of an arena.

A program is planned once. Constants are copied to the device, intermediates get views of one arena
(at the offsets that pass `memory` chose), and kernels get tables with the addresses of their
arrays. A call fills in its inputs and fresh outputs, then executes the steps. It need not wait for
the device. A large array is allocated before the step that writes it first, and freed after its
last reader. The arena is kept between calls, or allocated by each call: then programs that run one
after another use the same memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import chain
from typing import Any

from stack.ir.func import Func
from stack.ir.memory import reused
from stack.ir.node import Block, Node
from stack.ranges import OpenRange, recording
from stack.run.backend import Kernel, Kernels

from .control import control, is_capturable
from .device import Array, Bound, CallOpaque, Device, DeviceKernel, Load, Make, RuntimeValue
from .plan import KernelStep, MakingStep, Plan, allocating, releasing
from .records import described, label, label_of


class BlockProgram:
    """The steps of one block, ready to run. Arguments as for `Plan`."""

    def __init__(
        self,
        block: Block,
        device: Device,
        load: Load,
        call_opaque: CallOpaque | None = None,
        keeps: bool = True,
    ) -> None:
        self.block = block
        self.device = device
        self.load = load
        self.call_opaque = call_opaque
        self.lock = threading.RLock()
        self.inner: list[BlockProgram] = []
        self.name = ""  # of the range around a call in profilers
        self.records: Kernels | None = None  # of the steps, if they have some
        plan = Plan(block, device, load, call_opaque, self._control, keeps)
        self.inputs, self.steps, self.arena_bytes = plan.inputs, plan.steps, plan.arena_bytes
        self.enter = None if keeps else plan.arena
        self.results = plan.results
        self.shared = _shared(self.results, ("output", "made"))
        self.shared_in_loops = _shared(self.results, ("output", "made", "input"))
        self.fresh = [v for v in plan.all if v.source == "output"]
        late = plan.first_writers()
        early = [v for v in self.fresh if not any(v in values for values in late.values())]
        self.given = [*self.inputs, *early]
        self.allocators = [device.allocator(v.shape, v.dtype, v.what) for v in early]
        self.passing = [v for v in plan.all if v.source != "static"]
        self.bound = [step.bind(device) for step in self.steps]
        self.launches = [*self.bound]
        passed = plan.last_readers()
        roots = {value.root for values in passed.values() for value in values}
        # values that are freed before the last step
        self.freed = [v for v in plan.all if v in roots]
        for last, values in passed.items():
            self.launches[last] = releasing(self.launches[last], values)
        for first, values in late.items():
            made = [(v, device.allocator(v.shape, v.dtype, v.what)) for v in values]
            self.launches[first] = allocating(self.launches[first], made)
        self.patches = [
            (table, slot, number)
            for number, value in enumerate(self.given)
            for table, slot in value.slots
        ]

    def kernels(self) -> dict[Node, DeviceKernel]:
        """Returns the loaded kernels, those of inner blocks too."""
        found = {s.node: s.kernel for s in self.steps if isinstance(s, KernelStep)}
        for program in self.inner:
            found |= program.kernels()
        return found

    @property
    def capturable(self) -> bool:
        """True if all steps run on the device, so that a CUDA graph can contain them."""
        return all(step.capturable for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena plus the results."""
        return self.arena_bytes + sum(v.bytes for v in self.fresh)

    @cached_property
    def labels(self) -> list[str]:
        """The name of each step's range in profilers."""
        if self.records is not None:
            return list(map(label, self.records))
        return [label_of(self.block, step.node, step.library) for step in self.steps]

    def describe(
        self, func: Func, own: Callable[[Node], Kernel], is_whole: Callable[[Node], bool]
    ) -> Kernels:
        """Returns the records of the steps, see `described`. Ranges in profilers get their names.

        `func`: the function whose block this is.
        """
        steps = [(step.node, step.library) for step in self.steps]
        self.name = f"stack::{func.name}"
        self.records = Kernels(lambda: described(func, steps, own, is_whole))
        return self.records

    @property
    def updated(self) -> set[int]:
        """Returns the numbers of the inputs whose memory a run overwrites."""
        steps = [s for s in self.steps if not isinstance(s, MakingStep)]  # those copy operands
        roots = [s.args[number].root for s in steps for number in reused(s.node).values()]
        return {i for i, v in enumerate(self.inputs) if v in roots}

    def _control(self, node: Node) -> tuple[Make, bool]:
        inner = [BlockProgram(b, self.device, self.load, self.call_opaque) for b in node.blocks]
        self.inner += inner
        return control(node, inner, self.device), is_capturable(node, inner)

    def run(self, arrays: Iterable[Array]) -> list[Array]:
        """Takes dense arrays of the device and returns fresh ones; the device may still be busy.

        If `arrays` is an iterator that keeps no reference, a large input is freed after its last
        reader.
        """
        with self.lock:
            return self.device.within(self.work, arrays)

    def profile(self, arrays: Sequence[Array]) -> list[float]:
        """Seconds of each step of one run, measured on the device."""
        marks: list[Any] = []
        with self.lock:
            self.device.within(partial(self.work, marks=marks), arrays)
            return self.device.seconds(marks)

    def turn(self, arrays: Sequence[Array], stream: int) -> list[Array]:
        """Runs the block as one iteration of a loop, on a stream of the current device.

        It may overwrite the inputs in `updated`, and return inputs without copying them.
        """
        return self.work(arrays, stream, self.shared_in_loops)

    def work(
        self,
        arrays: Iterable[Array],
        stream: int,
        shared: Sequence[int] | None = None,
        marks: list[Any] | None = None,
    ) -> list[Array]:
        """As `run`, on a stream of the current device.

        `shared`: numbers of the results to copy; by default those that the caller would not own
        exclusively. `marks` receives a timestamp before the first step and after each step.
        """
        try:
            self._hold(arrays)
            if self.enter is not None:
                self.enter()
            opened = recording()
            if marks is not None:
                self._mark_steps(stream, marks)
            elif opened is not None:
                self.run_in_ranges(opened, self.launches, stream)
            else:
                for launch in self.launches:
                    launch(stream)
            results = [v.get() for v in self.results]
            for number in self.shared if shared is None else shared:
                results[number] = self.device.copy(results[number])
            return results
        finally:
            # drop the references: the caller owns these arrays, and no later call may write them
            for value in self.passing:
                value.drop()

    def run_in_ranges(self, opened: OpenRange, launches: Sequence[Bound], stream: int) -> None:
        """Launches each step in a range of its own, for the profilers that record."""
        with opened(self.name) if self.name else nullcontext():
            for name, launch in zip(self.labels, launches, strict=True):
                with opened(name):
                    launch(stream)

    def _hold(self, arrays: Iterable[Array]) -> None:
        """Stores the arrays of a call and fresh outputs in the runtime values; writes addresses.

        The values are the only references to the arrays during the call. The addresses go to the
        tables of the kernels.
        """
        fresh = (allocate() for allocate in self.allocators)
        for value, array in zip(self.given, chain(arrays, fresh), strict=True):
            value.array = array
        addresses = [self.device.address(value.array) for value in self.given]
        for table, slot, number in self.patches:
            table[slot] = addresses[number]

    def _mark_steps(self, stream: int, marks: list[Any]) -> None:
        marks.append(self.device.mark())
        for launch in self.launches:
            launch(stream)
            marks.append(self.device.mark())


def _shared(results: Sequence[RuntimeValue], own: Sequence[str]) -> tuple[int, ...]:
    """Returns the numbers of the results to copy, so that the caller owns each exclusively.

    These are results whose memory is not from a source in `own`, or is that of an earlier result.
    """
    given: set[RuntimeValue] = set()
    found: list[int] = []
    for number, result in enumerate(results):
        root = result.root
        if root in given or root.source not in own:
            found.append(number)
        given.add(root)
    return tuple(found)
