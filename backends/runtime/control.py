"""Control flow: programs inside of a program, run as one of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stack.ir.node import Node

from .device import Device, Make
from .values import Array

if TYPE_CHECKING:
    from .program import Program

CONTROL = frozenset({"call", "cond", "while"})


def control(node: Node, inner: Sequence[Program], device: Device) -> Make:
    """What runs a `call`, `cond` or `while` node, whose blocks are `inner`."""
    if node.op == "call":
        return inner[0].work
    if node.op == "cond":
        return _branch(inner)
    test, body = inner
    count = node.attrs.get("trip_count")
    return device.loop(test, body) or (
        _loop(test, body, device) if count is None else _turns(body, count, device)
    )


def is_capturable(node: Node, inner: Sequence[Program]) -> bool:
    """Whether the host knows what runs without waiting for the device."""
    is_known = node.op == "call" or node.attrs.get("trip_count") is not None
    return is_known and inner[-1].capturable


def _branch(branches: Sequence[Program]) -> Make:
    """A number out of range takes the nearest branch."""

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        number = min(max(int(arrays[0]), 0), len(branches) - 1)
        return branches[number].work(arrays[1:], stream)

    return run


def _turns(body: Program, count: int, device: Device) -> Make:
    """So many turns: nobody has to be asked whether there is one more."""
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        for _ in range(count):
            state = body.turn(state, stream)
        return state

    return run


def _loop(test: Program, body: Program, device: Device) -> Make:
    """Turn by turn: results may be operands that no turn changed."""
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        # what is updated in place has to be the loop's own
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        while bool(test.work(state, stream)[0]):
            state = body.turn(state, stream)
        return state

    return run
