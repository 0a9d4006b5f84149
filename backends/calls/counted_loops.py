"""Loops with known trip counts inside a custom call of XLA: the steps of all iterations in a row.

Scalars that depend on constants alone, such as the counter, are computed when the call is planned;
kernels read them from constant memory. A row of an array that an iteration sets is computed in its
place if that is aligned, else copied there. Other carried values alternate between two buffers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np

from stack.ir.builder import block_of, constant
from stack.ir.interpreter import interpret
from stack.ir.memory import reused
from stack.ir.node import Node
from stack.ir.traits import behind, is_input, is_item, is_kernel, is_known, is_while, writes_by_data
from stack.ir.updates import updated_rows
from stack.run.foreign import Value, value_of

from ..runtime.plan import ALIGNMENT
from .foreign_memory import ForeignMemory, Place, arena_offsets, bytes_of

MOST = 4096  # steps of all iterations: a plan lists each of them

Places = dict[Value, Place]
Scalars = dict[Value, np.ndarray[Any, Any]]


class CallSteps(Protocol):
    """The steps of one custom call, which are added in order."""

    @property
    def memory(self) -> ForeignMemory: ...

    def kernel(self, node: Node, places: Sequence[Place], outs: Sequence[Place]) -> None:
        """Adds a launch of the kernel of a node."""
        ...

    def copy(self, target: Place, source: Place, size: int) -> None:
        """Adds a copy of memory."""
        ...


class CountedLoop:
    """A `while` node whose iterations can be listed, if `is_listed`.

    Attributes:
        steps: nodes of the body that execute, in order.
        scalars: values of the body that are known when a call is planned.
        rows: steps that set a row of a carried array, with the number of the carried value.
    """

    def __init__(self, loop: Node) -> None:
        self.loop, body = loop, loop.blocks[1]
        self.count = int(loop.attrs.get("trip_count", 0))
        self.steps = [n for n in body.nodes if _executes(n)]
        self.params: list[Value] = [(p, 0) for p in body.params]
        self.results = [value_of(r) for r in body.results]
        self.scalars = self._known_scalars()
        rows = {n: self._row_slot(n) for n in self.steps}
        self.rows = {n: slot for n, slot in rows.items() if slot is not None}
        self.kernels = [n for n in self.steps if n not in self.rows and (n, 0) not in self.scalars]

    @property
    def is_listed(self) -> bool:
        """True if all steps are kernels or set rows, and each carried value is made by another step
        or passed on.
        """
        pairs = zip(self.params, self.results, strict=True)
        made = [result for param, result in pairs if result != param]
        is_own = len(set(made)) == len(made) and all(node in self.steps for node, _ in made)
        plain = [n for n in self.steps if n not in self.rows]
        are_kernels = all(is_kernel(n) and "updates" not in n.attrs for n in plain)
        are_rows = set(reused(self.loop)) <= set(self.rows.values())
        is_short = 0 < self.count * max(1, len(self.steps)) <= MOST
        return is_own and are_kernels and are_rows and is_short

    def _known_scalars(self) -> set[Value]:
        params = {
            p for p, a in zip(self.params, self.loop.args, strict=True) if _is_constant_scalar(a)
        }
        while True:
            known = set(params)
            for node in self.steps:
                if is_kernel(node) and all(t.rank == 0 for t in node.types):
                    if all(_is_constant_scalar(a) or value_of(a) in known for a in node.args):
                        known |= {(node, i) for i in range(len(node.types))}
            pairs = zip(self.params, self.results, strict=True)
            left = {param for param, result in pairs if param in params and result in known}
            if left == params:
                return known
            params = left

    def _row_slot(self, step: Node) -> int | None:
        """Returns the number of the carried array of which a step sets a row; None if the step does
        anything else.
        """
        inner = step.blocks[0].nodes if step.attrs.get("updates") == 0 else ()
        if step.attrs.get("kind") != "library" or len(inner) != 1 or not writes_by_data(inner[0]):
            return None
        (scatter,) = inner
        rows = updated_rows(scatter)
        if rows is None or scatter.attrs["kind"] != "set" or scatter.args != step.blocks[0].params:
            return None
        is_dense = rows.axis == 0 and rows.perm == tuple(range(len(rows.perm)))
        array, index, _ = map(value_of, step.args)
        if not is_dense or index not in self.scalars or array not in self.params:
            return None
        slot = self.params.index(array)
        return slot if self.results[slot] == (step, 0) else None

    # ---- the steps of a call

    def add(self, steps: CallSteps, read: Container[Value]) -> None:
        """Adds all iterations to a call. `read`: the values that are read outside of the loop."""
        _Iterations(self, steps, read).add()


def counted_loop(node: Node) -> CountedLoop | None:
    """Returns a loop whose iterations can be listed; None for other nodes."""
    found = CountedLoop(node) if is_while(node) and "trip_count" in node.attrs else None
    return found if found is not None and found.is_listed else None


class _Iterations:
    """The iterations of one loop in one call."""

    def __init__(self, loop: CountedLoop, steps: CallSteps, read: Container[Value]) -> None:
        self.loop, self.calls, self.memory, self.read = loop, steps, steps.memory, read
        self.constants: dict[tuple[str, bytes], Place] = {}
        own = [(v, at) for n in loop.kernels for v, at in arena_offsets(n)]
        size = max((at + bytes_of(v) for v, at in own), default=0)
        number, start = self.memory.new(size)
        self.scratch: Places = {v: (number, start + at) for v, at in own}
        self.buffers: dict[int, list[Place]] = {}

    def add(self) -> None:
        loop, node = self.loop, self.loop.loop
        places = {p: self.memory.place(a) for p, a in zip(loop.params, node.args, strict=True)}
        scalars = {
            p: behind(a).attrs["value"].array
            for p, a in zip(loop.params, node.args, strict=True)
            if p in loop.scalars
        }
        for slot in loop.rows.values():
            if slot in reused(node):
                self.memory.overwrite(value_of(node.args[slot]), (node, slot))
            place = self.memory.of((node, slot))
            self.calls.copy(place, places[loop.params[slot]], bytes_of((node, slot)))
            places[loop.params[slot]] = place
        for turn in range(loop.count):
            places, scalars = self._iteration(turn, places, scalars)
        for slot, param in enumerate(loop.params):
            result = node, slot
            if result in self.read:
                self.calls.copy(self.memory.of(result), places[param], bytes_of(result))

    def _iteration(self, turn: int, places: Places, scalars: Scalars) -> tuple[Places, Scalars]:
        """Adds one iteration; returns the places and scalars of the values that it passes on."""
        loop = self.loop
        places, scalars = dict(places), dict(scalars)
        for node in loop.steps:
            if (node, 0) in loop.scalars:
                self._compute(node, scalars)
        targets = self._targets(turn, places, scalars)
        for node in loop.steps:
            if node in loop.rows:
                row = self._row(node, places, scalars)
                if row is not None:
                    source = self._place(node.args[2], places, scalars)
                    self.calls.copy(row, source, _row_bytes(node))
                places[node, 0] = places[value_of(node.args[0])]
            elif (node, 0) not in loop.scalars:
                outs = [(node, i) for i in range(len(node.types))]
                places |= {v: targets[v] if v in targets else self._own(v) for v in outs}
                args = [self._place(a, places, scalars) for a in node.args]
                self.calls.kernel(node, args, [places[v] for v in outs])
        pairs = list(zip(loop.params, loop.results, strict=True))
        passed = {p: scalars[r] for p, r in pairs if r in scalars}
        return {
            p: self._constant(passed[p], p[0]) if p in passed else places[r] for p, r in pairs
        }, passed

    def _targets(self, turn: int, places: Places, scalars: Scalars) -> Places:
        """Returns the places of values that an iteration passes on or sets as rows."""
        loop, node, found = self.loop, self.loop.loop, Places()
        is_last = turn == loop.count - 1
        for slot, value in enumerate(loop.results):
            if value in scalars or value == loop.params[slot] or value[0] in loop.rows:
                continue
            if is_last and (node, slot) in self.read:
                found[value] = self.memory.of((node, slot))
                continue
            if slot not in self.buffers:
                self.buffers[slot] = [self.memory.new(bytes_of((node, slot))) for _ in range(2)]
            found[value] = self.buffers[slot][turn % 2]
        carried = [places[p] for p in loop.params]
        for step, slot in loop.rows.items():
            value, row = value_of(step.args[2]), self._row(step, places, scalars)
            array = loop.params[slot]
            readers = [n for n in loop.steps if any(value_of(a) == array for a in n.args)]
            is_made = value[0] in loop.kernels and _row_bytes(step) % ALIGNMENT == 0
            if row is not None and is_made and readers == [step] and row not in carried:
                found[value] = row
        return found

    def _compute(self, node: Node, scalars: Scalars) -> None:
        """Computes the scalars that a kernel of the body returns."""
        args = [
            scalars[value_of(a)] if value_of(a) in scalars else behind(a).attrs["value"].array
            for a in node.args
        ]
        made = interpret(str(node.attrs["name"]), block_of(node), args)
        results = made if isinstance(made, tuple) else (made,)
        scalars |= {(node, i): np.asarray(x) for i, x in enumerate(results)}

    def _row(self, step: Node, places: Places, scalars: Scalars) -> Place | None:
        """Returns the place of the row that a step sets; None if its index is out of range."""
        number, start = places[value_of(step.args[0])]
        index = int(scalars[value_of(step.args[1])])
        is_there = 0 <= index < int(step.types[0].shape[0])  # pyright: ignore[reportArgumentType]
        return (number, start + index * _row_bytes(step)) if is_there else None

    def _place(self, node: Node, places: Places, scalars: Scalars) -> Place:
        value = value_of(node)
        if value in scalars:
            return self._constant(scalars[value], node)
        return self.memory.place(node) if behind(node).op == "const" else places[value]

    def _constant(self, scalar: np.ndarray[Any, Any], like: Node) -> Place:
        key = str(like.dtype), scalar.tobytes()
        if key not in self.constants:
            self.constants[key] = self.memory.place(constant(scalar.reshape(()), like.dtype))
        return self.constants[key]

    def _own(self, value: Value) -> Place:
        """Returns the place of a value that is dropped after an iteration."""
        if value not in self.scratch:
            self.scratch[value] = self.memory.new(bytes_of(value))
        return self.scratch[value]


def _executes(node: Node) -> bool:
    return behind(node) is node and not (is_item(node) or is_input(node) or is_known(node))


def _is_constant_scalar(node: Node) -> bool:
    found = behind(node)
    return found.op == "const" and found.tensor.rank == 0


def _row_bytes(step: Node) -> int:
    """Returns the size of a row of the array that a step updates."""
    return bytes_of((step, 0)) // int(step.types[0].shape[0])  # pyright: ignore[reportArgumentType]
