"""Control flow run from Python: programs inside a program, each executed as one of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from stack.ir.node import Node
from stack.ir.ops import lookup
from stack.ir.traits import is_alias, is_control, is_item, is_kernel

from .device import Array, Device, Make

CONTROL = frozenset({"call", "cond", "while"})


class InnerProgram(Protocol):
    """A program inside a program; see `BlockProgram`."""

    @property
    def capturable(self) -> bool: ...

    @property
    def updated(self) -> set[int]: ...

    def turn(self, arrays: Sequence[Array], stream: int) -> list[Array]: ...

    def work(self, arrays: Iterable[Array], stream: int, /) -> list[Array]: ...


def control(node: Node, inner: Sequence[InnerProgram], device: Device) -> Make:
    """Returns the function that executes a `call`, `cond` or `while` node with blocks `inner`."""
    if node.op == "call":
        return _branch(inner[0], device)
    if node.op == "cond":
        return _choice([_branch(block, device) for block in inner])
    test, body = inner
    count = node.attrs.get("trip_count")
    return _loop(test, body, device) if count is None else _turns(body, count, device)


def has_only_kernels(node: Node) -> bool:
    """True if every step inside a control flow node is a kernel or control flow of kernels."""
    steps = [n for block in node.blocks for n in block.nodes]
    return all(has_only_kernels(n) if is_control(n) else _is_kernel_or_none(n) for n in steps)


def _is_kernel_or_none(node: Node) -> bool:
    return is_kernel(node) or is_alias(node) or is_item(node) or node.op == "const"


def is_replayed(node: Node) -> bool:
    """True if a CUDA graph can replay a control flow node: the host knows which steps run."""
    steps = [n for block in node.blocks for n in block.nodes]
    inner = all(is_replayed(n) for n in steps if is_control(n))
    return _is_known(node) and inner and all(lookup(n.op).kind != "foreign" for n in steps)


def is_capturable(node: Node, inner: Sequence[InnerProgram]) -> bool:
    """True if a CUDA graph can capture a control flow node with blocks `inner`.

    Only if the host knows, without waiting for the device, which kernels run: for a call, or a loop
    with a constant trip count, whose steps can all be captured.
    """
    return _is_known(node) and inner[-1].capturable


def _is_known(node: Node) -> bool:
    return node.op == "call" or node.attrs.get("trip_count") is not None


def _branch(block: InnerProgram, device: Device) -> Make:
    """Returns a function that runs a block, on copies of the operands that it overwrites."""
    updated = block.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        own = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        return block.turn(own, stream)

    return run


def _choice(branches: Sequence[Make]) -> Make:
    """Returns a function that runs the branch whose number is its first array.

    A number out of range is clamped to the first or last branch.
    """

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        number = min(max(int(arrays[0]), 0), len(branches) - 1)
        return branches[number](arrays[1:], stream)

    return run


def _turns(body: InnerProgram, count: int, device: Device) -> Make:
    """Returns a function that runs a loop body `count` times; a result is the next operand.

    Operands that the body overwrites are copied first.
    """
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        for _ in range(count):
            state = body.turn(state, stream)
        return state

    return run


def _loop(test: InnerProgram, body: InnerProgram, device: Device) -> Make:
    """Returns a function that runs a loop while `test` is true, tested before each iteration.

    A result may be an operand that no iteration changed.
    """
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        # an array that is updated in place must belong to the loop
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        while bool(test.work(state, stream)[0]):
            state = body.turn(state, stream)
        return state

    return run
