"""Lowers one kernel of thread blocks, node by node, to its threads."""

from __future__ import annotations

from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_alias,
    is_contraction,
    is_elementwise,
    is_item,
    is_loop,
    is_memory,
    is_reduction,
    reads_by_data,
)
from stack.passes.gpu_layout.attributes import Attributes, CannotDistribute
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import DimClasses, is_tile, kept_dims
from stack.passes.gpu_layout.contiguity import Contiguity
from stack.passes.gpu_layout.global_memory import GlobalMemory
from stack.passes.gpu_layout.instruction_layouts import Instructions, Matmul
from stack.passes.gpu_layout.layouts import Layouts
from stack.passes.gpu_layout.mma import Fma, Mma, Warpgroup
from stack.passes.gpu_layout.prefetch import Plan, Prefetch
from stack.passes.gpu_layout.reductions import Reductions, Scan
from stack.passes.gpu_layout.share import Layout, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory
from stack.passes.gpu_layout.values import Values
from stack.passes.tiling.frame import with_own_variables
from stack.target import Gpu

KEPT_LOOPS = ("grid", "serial", "branch")  # loops that all threads run together


def lower_kernel(kernel: Node, gpu: Gpu) -> Node:
    """Lowers a tile-level kernel to threads, at the loop level. Raises CannotDistribute if threads
    cannot compute it, for example for lack of shared memory.
    """
    block = with_own_variables(kernel.blocks[0])
    attributes = Attributes.of(kernel, gpu)
    if sum(is_loop(n, "grid") for n in block.nodes) > 1:
        raise CannotDistribute("its programs have blocks of two sizes")
    body = Lowering(block, attributes, gpu).lowered()
    return Node("kernel", kernel.args, {**kernel.attrs, "level": "loop"}, kernel.type, (body,))


class Lowering:
    """Dispatches the nodes of one kernel to the objects that build them.

    Args:
        block: the block of the kernel.
    """

    def __init__(self, block: Block, attributes: Attributes, gpu: Gpu) -> None:
        self.block = block
        contiguity = Contiguity()
        self.classes = DimClasses(block)
        self.instructions = Instructions(self.classes.nodes, attributes, gpu)
        prescribed = self.instructions.layouts
        self.layouts = Layouts(self.classes, contiguity, attributes.warps, prescribed)

        self.tiles = tiles = ThreadBuilder(block, attributes.warps)
        self.shared = shared = SharedMemory(tiles)
        self.values = values = Values(block, tiles, shared, self.layouts)
        self.memory = GlobalMemory(tiles, shared, values, self.layouts, contiguity, gpu.layouts)
        self.reductions = Reductions(tiles, shared)
        self.warpgroup = Warpgroup(tiles, values)
        self.fma = Fma(tiles, values, self.memory, attributes.is_direct, gpu.layouts)
        self.mma = Mma(tiles, values)
        self.prefetch = Prefetch(
            tiles, self.memory, values, self.instructions, attributes.stages, gpu
        )

        self.results: dict[Node, list[ThreadValue]] = {}  # of loops
        self.fused = set(self.instructions.accumulations.values())  # matmuls built by an addition
        self.overlapped: dict[Node, int] = {}  # sums that may be incomplete for a while
        self.around: list[Node] = []  # the indices of the enclosing loops

    def lowered(self) -> Block:
        """Returns the body of the kernel at the loop level. Raises CannotDistribute."""
        self._nodes(self.block)
        results = [self.values.memory(r) for r in self.block.results]
        return self.tiles.b.block(self.block.params, results)

    def _nodes(self, block: Block) -> None:
        for node in block.nodes:
            self._node(node)
            made = self.values.built(node)
            if made is not None:
                self.values.keep_name(node, made.node)

    def _node(self, node: Node) -> None:
        if node.op in ("const", "param", "var") or node in self.fused:
            return
        if self.values.is_prefetched(node):
            return
        if is_loop(node):
            self._loop(node)
        elif is_item(node):
            value = self.results[node.args[0]][int(node.attrs["index"])]
            self.values.define(node, value)
        elif node.op == "store":
            self.values.define(node, ThreadValue(self.memory.store(node)))
        elif not is_tile(node):
            self.values.define(node, self._value(node, ()))
        elif not self.classes.is_cheap(node):
            self.values.define(node, self._value(node, self.layouts.of(node)))

    def _value(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds a tile in a layout, or a number, which has none."""
        if node.op == "load":
            return self.memory.load(node, layout)
        if is_reduction(node):
            value = self.values.in_own_layout(node.args[0])
            return self.shared.converted(self.reductions.reduce(node, value), layout)
        if is_alias(node) and kept_dims(node.args[0].tensor, node.tensor) is None:
            raise CannotDistribute(f"a reshape of {node.args[0].type} to {node.type}")
        if node in self.instructions.accumulations:
            matmul = self.instructions.accumulations[node]
            start = next(a for a in node.args if a is not matmul)
            pending = self.overlapped.get(node, 0)
            return self._matmul(matmul, layout, self.values.at(start, layout), pending)
        is_view = node.op in ("broadcast", "transpose", "again") or is_alias(node)
        if is_view or is_elementwise(node):
            return self.values.computed(node, layout)
        if not layout:
            raise CannotDistribute(f"no code for {node.op} of numbers")
        if node.op == "scan":
            value = self.values.at(node.args[0], layout)
            return Scan(node, self.tiles, self.reductions).build(value)
        if is_contraction(node):
            return self._matmul(node, layout, self.tiles.full(0, node.dtype, layout))
        if reads_by_data(node):
            return self._gather(node, layout)
        raise CannotDistribute(f"no code for {node.op}")

    def _gather(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds a gather from a vector, through shared memory."""
        source, index = node.args
        if source.tensor.rank != 1:
            raise CannotDistribute("a gather from more than one axis")
        memory = self.shared.stored(self.values.in_own_layout(source))
        return self.shared.read(memory, [self.values.at(index, layout)], layout)

    def _matmul(
        self, node: Node, layout: Layout, start: ThreadValue, pending: int = 0
    ) -> ThreadValue:
        """Builds a matmul whose sums are added to `start`.

        Matmuls of warpgroups are asynchronous: waits until at most the newest `pending` ones are
        incomplete.
        """
        matmul = Matmul(node)
        on_units = self.instructions.uses_matrix_units(matmul)
        if not on_units or layout != self.instructions.layout_of(matmul):
            return self.fma.multiply(matmul, layout, start)
        if not self.instructions.has_warpgroups:
            return self.mma.multiply(matmul, layout, start)
        return self.warpgroup.wait(self.warpgroup.multiply(matmul, layout, start), pending)

    # ---- loops

    def _loop(self, node: Node) -> None:
        """Builds a loop that all threads run, each with its elements of the carried values."""
        if node.attrs["kind"] not in KEPT_LOOPS:
            raise CannotDistribute(f"a {node.attrs['kind']} loop of blocks")
        limits, init = loop_parts(node.args, node.attrs)
        body = node.blocks[0]
        index, *carried = body.params
        starts = [self._carried(i, c) for i, c in zip(init, carried, strict=True)]
        params: list[Node] = []
        for param, start in zip(carried, starts, strict=True):
            params.append(Node("var", (), param.attrs, start.node.type))
            self.values.define(param, ThreadValue(params[-1], start.layout))
        bounds = [self.shared.uniform(self.values.scalar(v)) for v in limits]
        plan = self.prefetch.plan(body) if node.attrs["kind"] == "serial" else Plan()
        rings = self.prefetch.start(plan, index, bounds, self.around)
        self.overlapped.update(plan.overlapped)
        self.around.append(index)
        self._nodes(body)
        self.around.pop()
        ends = [self._carried(r, c) for r, c in zip(body.results, carried, strict=True)]
        results = [*(e.node for e in ends), *rings.after]
        block = Block((index, *params, *rings.carried), results)
        args = [*bounds, *(s.node for s in starts), *rings.before]
        made = self.tiles.b.op("loop", args, node.attrs, (block,))
        self.results[node] = []
        for i, (start, result) in enumerate(zip(starts, body.results, strict=True)):
            item = made if len(results) == 1 else self.tiles.b.item(made, index=i)
            value = ThreadValue(item, start.layout)
            is_complete = result not in plan.overlapped
            self.results[node].append(value if is_complete else self.warpgroup.wait(value))
        if len(starts) == 1:
            self.values.define(node, self.results[node][0])

    def _carried(self, value: Node, param: Node) -> ThreadValue:
        """Returns the initial value of a loop-carried variable `param` in the form in which all
        iterations carry it: memory, a number per thread, or a tile in a fixed layout.
        """
        if is_memory(value):
            return ThreadValue(self.values.memory(value))
        if is_tile(value):
            return self.values.at(value, self.layouts.of(param))
        return self.tiles.per_thread(self.values.scalar(value))
