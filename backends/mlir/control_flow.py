"""Compiles control flow whose steps are all our kernels to one native function, a kernel itself.

Branches and loops may contain others. Small kernels are inlined into the function, where LLVM keeps
single elements in registers. Larger ones are called. An array that each iteration of a loop
computes anew has two buffers besides its initial value: an iteration reads one and writes the
other. A value that is updated in place has one buffer, and one that is only passed on has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stack.ir.memory import overwritten, owner, reusable, reused
from stack.ir.node import Block, Node
from stack.ir.traits import is_control, is_kernel, is_while
from stack.ir.types import TensorType
from stack.run.cache import Cache
from stack.run.foreign import Value, value_of, values_read
from stack.target.record import LINE

from ..runtime.device import Load
from . import jit
from .control_flow_text import NAME, WORD, FunctionText

# bytes of a kernel's text up to which it is inlined: a call takes as long as a few instructions
MOST_INLINED = 1 << 13

Constant = Callable[[Node], np.ndarray]


class ControlFlow(jit.NativeKernel):
    """A control flow node as a native function of its operands and of those results that are read.

    Attributes:
        read: numbers of the results that it writes.
        scratch: bytes of memory that it uses, whose address is the first of the `fixed` ones.
        updated: numbers of the operands that it copies to results and then updates in place, by
            the number of the result.
    """

    def __init__(
        self,
        node: Node,
        read: Sequence[int],
        load: Load,
        constant: Constant,
        cache: Cache | None,
    ) -> None:
        try:
            code, native = _built(node, read, load, constant, cache, MOST_INLINED)
        except jit.CompileError:  # with all kernels in one function; each alone compiles
            code, native = _built(node, read, load, constant, cache, 0)
        super().__init__(NAME, native.address, (native, code))
        self.read = tuple(read)
        self.scratch = code.text.scratch
        self.updated = {i: number for i, number in reusable(node).items() if i in read}
        memory = np.empty(self.scratch + LINE, np.uint8)
        start = memory.ctypes.data
        self._held = memory
        self.fixed = (start + -start % LINE, *code.text.fixed)


def _built(
    node: Node,
    read: Sequence[int],
    load: Load,
    constant: Constant,
    cache: Cache | None,
    most: int,
) -> tuple[_Code, jit.NativeKernel]:
    """Compiles the function; kernels with at most `most` bytes of text are inlined."""
    code = _Code(FunctionText(len(node.args) + len(read)), load, constant, most)
    args, outs = code.text.given[: len(node.args)], code.text.given[len(node.args) :]
    places = dict(zip(read, outs, strict=True))
    code.control(node, args, [places.get(i) for i in range(len(node.types))])
    return code, jit.build(code.text.module(), [NAME], cache, optimized=True)[NAME]


def updated(body: Block) -> set[int]:
    """Returns the numbers of the parameters whose memory a block overwrites."""
    found = overwritten(body)
    return {i for i, p in enumerate(body.params) if p in found}


def root_of(node: Node) -> Value:
    """Returns the value whose memory a value has: the one that it updates or is another view of."""
    return value_of(owner(node))


class _Code:
    """Writes the code of blocks. `kept`: the kernels that it calls, the arrays that it reads."""

    def __init__(self, text: FunctionText, load: Load, constant: Constant, most: int) -> None:
        self.text, self.load, self.constant, self.most = text, load, constant, most
        self.kept: list[object] = []

    def control(self, node: Node, args: Sequence[str], outs: Sequence[str | None]) -> None:
        """Writes a control flow node.

        Args:
            args: the memory of its operands, which it leaves unchanged.
            outs: the memory for its results, which overlaps with no other; None if nobody reads it.
        """
        with self.text.released():
            if is_while(node):
                self._loop(node, args, outs)
            elif node.op == "call":
                self._branch(node.blocks[0], args, outs)
            else:
                number = self.text.number(args[0], node.args[0].dtype, len(node.blocks))
                for case in self.text.cases(number, len(node.blocks)):
                    with self.text.released():
                        self._branch(node.blocks[case], args[1:], outs)

    def _branch(self, block: Block, args: Sequence[str], outs: Sequence[str | None]) -> None:
        """Writes a block that overwrites parameters only in the memory of its results."""
        given, owners = [*args], [owner(r) for r in block.results]
        for param in overwritten(block):
            number, result = block.params.index(param), owners.index(param)
            given[number] = self._own(param.tensor, outs[result])
            self.text.copy(given[number], args[number], _bytes(param.tensor))
        self._block(block, given, outs)

    def _block(
        self, block: Block, args: Sequence[str], targets: Sequence[str | None]
    ) -> Sequence[str]:
        """Writes a block; returns the memory of its results.

        Args:
            args: the memory of its parameters.
            targets: where to write its results; None for any memory.
        """
        memory: dict[Value, str] = {(p, 0): a for p, a in zip(block.params, args, strict=True)}
        wanted: dict[Value, str] = {}  # results that steps write where they are needed
        for result, target in zip(block.results, targets, strict=True):
            if target is not None:
                wanted.setdefault(root_of(result), target)
        arena, read = self.text.reserve(_arena_bytes(block)), values_read(block)
        for node in block.nodes:
            if node.op == "const":
                memory[node, 0] = self._constant(node)
            if not is_kernel(node) and not is_control(node):
                continue
            operands = [memory[root_of(a)] for a in node.args]
            results = [(node, i) for i in range(len(node.types))]
            for value in results:
                number = reused(node).get(value[1])
                if number is not None:
                    memory[value] = operands[number]
                elif is_kernel(node) or value in read:
                    memory[value] = wanted.get(value) or self._place(value, arena)
            if is_control(node):
                self.control(node, operands, [memory.get(value) for value in results])
                continue
            kernel = self.load(node)
            assert isinstance(kernel, jit.NativeKernel)
            self.kept.append(kernel)
            operands += [memory[value] for value in results]
            is_small = 0 < len(kernel.text) <= self.most
            self.text.call(kernel.text if is_small else kernel.address, operands)
        found = [memory[root_of(r)] for r in block.results]
        for result, place, target in zip(block.results, found, targets, strict=True):
            if target is not None:
                self.text.copy(target, place, _bytes(result.tensor))
        return found

    def _loop(self, node: Node, args: Sequence[str], outs: Sequence[str | None]) -> None:
        test, body = node.blocks
        text, overwritten = self.text, updated(body)
        held: dict[int, str] = {}  # the memory of values that keep it
        cells: dict[int, tuple[str, str]] = {}  # single elements: now, and in the next iteration
        buffers: dict[int, tuple[str, str, str]] = {}  # variables: to read, to write, to write next
        for i, (param, result) in enumerate(zip(body.params, body.results, strict=True)):
            type_, arg = param.tensor, args[i]
            if root_of(result) == (param, 0):
                held[i] = self._own(type_, outs[i]) if i in overwritten else arg
                text.copy(held[i], arg, _bytes(type_))
            elif _is_element(type_):
                cells[i] = text.cell(_bytes(type_)), text.cell(_bytes(type_))
                text.copy(cells[i][0], arg, _bytes(type_))
            else:
                pair = [self._own(type_, outs[i]), self._own(type_)]
                # the last iteration writes the first buffer if the trip count is odd
                first, second = reversed(pair) if node.attrs.get("trip_count", 1) % 2 == 0 else pair
                buffers[i] = text.variable(arg), text.variable(first), text.variable(second)

        def state() -> list[str]:
            read = {i: text.get(here) for i, (here, _, _) in buffers.items()}
            read |= held | {i: now for i, (now, _) in cells.items()}
            return [read[i] for i in range(len(args))]

        with text.loop():
            (flag,) = self._block(test, state(), [None])
            text.go_on(flag)
            written = {i: text.get(write) for i, (_, write, _) in buffers.items()}
            targets = written | {i: after for i, (_, after) in cells.items()}
            self._block(body, state(), [targets.get(i) for i in range(len(args))])
            for i, (now, after) in cells.items():
                text.copy(now, after, _bytes(body.params[i].tensor))
            for i, (here, write, spare) in buffers.items():
                text.set(here, written[i])
                text.set(write, text.get(spare))
                text.set(spare, written[i])
        for out, place, param in zip(outs, state(), body.params, strict=True):
            if out is not None:
                text.copy(out, place, _bytes(param.tensor))

    def _own(self, type_: TensorType, given: str | None = None) -> str:
        """Returns memory for a value: the given one, else a local variable or scratch memory."""
        if given is not None:
            return given
        if _is_element(type_):
            return self.text.cell(_bytes(type_))
        return self.text.scratch_at(self.text.reserve(_bytes(type_)))

    def _place(self, value: Value, arena: int) -> str:
        """Returns memory for a result of a step: in the block's arena if it has a place there."""
        node, item = value
        at = (node.attrs.get("at") or (-1,) * len(node.types))[item]
        if at < 0 or _is_element(node.types[item]):
            return self._own(node.types[item])
        return self.text.scratch_at(arena + at)

    def _constant(self, node: Node) -> str:
        array = self.constant(node)
        self.kept.append(array)
        return self.text.at(array.ctypes.data)


def _arena_bytes(block: Block) -> int:
    """Returns the size of the arena that pass `memory` planned for a block."""
    placed = [(at, t) for n in block.nodes for at, t in zip(n.attrs.get("at") or (), n.types)]
    return max((at + _bytes(t) for at, t in placed if at >= 0), default=0)


def _bytes(type_: TensorType) -> int:
    return int(type_.bytes)  # pyright: ignore[reportArgumentType]


def _is_element(type_: TensorType) -> bool:
    """True if a value fits in a register."""
    return type_.bytes == type_.dtype.bytes <= WORD
