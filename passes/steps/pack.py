"""Operands of a matrix product of blocks as an instruction reads them: packed, and unsigned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import Builder, constant, converted, make, param, reshaped
from stack.ir.contraction import product_types
from stack.ir.node import Block, Node, topological
from stack.ir.traits import in_windows, is_load, unconverted
from stack.ir.types import DTYPES, TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.panels import (
    PAIR,
    BlockProduct,
    ProductStep,
    block_products,
    products_reading,
    why_not_one,
)
from stack.passes.steps.step import Step
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target
from stack.target.mma import MMAS

ONCE = "once"


@dataclass(frozen=True)
class Pack(Step, name="pack", only=Cpu):
    """Copy the panel of columns that a matrix product reads from memory.

        loop(...) {(%j < 4, ...)                pack p1   loop(...) {(%j < 4, ...)
          %b = load(%p1, %j, 0) : f32<32x64>                %b = load(%p1, %j, 0) : f32<32x64>
          loop(...) {(%i < 9, ...)                          %p = store(alloc(), transpose(%b), 0, 0)
            %a = load(%p0, %i, 0) : f32<6x64>               loop(...) {(%i < 9, ...)
            dot(%a, %b)                                       %a = load(%p0, %i, 0) : f32<6x64>
              {rule="m k, n k -> m n"}                        dot(%a, load(%p, 0, 0) : f32<64x32>)
                                                                {rule="m k, k n -> m n"}

    The copy is in local memory, in the innermost of the loops that select the panel. The tiles of
    rows inside of it read the copy in order. Reduction axes have the order of the operand with the
    rows, which is read in place. If an instruction multiplies neighbours along the last one, these
    neighbours are adjacent, and each row of the panel has a group of them for each column.

    `pack p1 once` is for memory that is the same in all calls, such as a weight: a kernel of its
    own packs all panels, and the matrix product reads them in place.

    Legal if a `dot` of blocks reads its columns from the memory, an input or local memory, and not
    through windows; local memory must hold the panel. With `once`, nothing else reads the memory,
    and its indices do not depend on data. CPUs only.

    Source: packing of the BLIS and GotoBLAS panels (Goto and van de Geijn, TOMS 2008).

    Attributes:
        memory: an input of the kernel, or local memory.
        when: `once` packs in a kernel of its own, which runs only if the memory changes.
    """

    memory: str
    when: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.when not in ("", ONCE):
            yield f"a panel is packed here or `{ONCE}`, not {self.when!r}"
        found = products_reading(kernel, self.memory)
        if not found:
            yield f"no matrix product of blocks reads columns from {self.memory}"
        yield from map(_why_not_packed, found)
        size = max(static(product.panel.tensor.bytes) for product in found)
        if size > LARGEST_LOCAL and not self.when:
            yield f"a panel of {size} bytes; local memory has at most {LARGEST_LOCAL}"
        panel = unconverted(found[0].panel)
        memory, *index = panel.args
        if self.when and memory not in kernel.blocks[0].params:
            yield f"{self.memory} is no input"
        if self.when and [n for n in kernel.blocks[0].all_nodes if memory in n.args] != [panel]:
            yield f"more than the panels is read from {self.memory}"
        if self.when and any(map(is_load, topological(index))):
            yield f"data selects the panels of {self.memory}"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        found = {product.dot: product for product in products_reading(kernel, self.memory)}
        copies: dict[Node, Node] = {}
        (first, *_) = found.values()
        packed = _Packed(first, self.memory) if self.when else None
        if packed is not None:
            copies[first.panel] = packed.read

        def visit(old: Node, made: Node) -> Node:
            if old not in found:
                return made
            product = BlockProduct(made, found[old].around)
            if product.panel not in copies:
                copies[product.panel] = edit.locate(old, _copy(edit, product))
            return _on_panel(product, copies[product.panel])

        made = edit.everywhere(visit)
        return packed.given_to(made) if packed is not None else made


class _Packed:
    """Panels that a kernel of its own packs.

    Args:
        product: a matrix product that reads them.
        name: the memory from which they are packed.
    """

    def __init__(self, product: BlockProduct, name: str) -> None:
        self.value, self.indices = _packed(product), product.indices
        self.corner = product.corner(self.value.tensor.rank)
        self.memory = unconverted(product.panel).args[0]
        shape = (*(int(v.attrs["extent"]) for v in self.indices), *self.value.shape)
        self.panels = param(name, TensorType(self.value.dtype, shape, "global"))

    @property
    def read(self) -> Node:
        """The load of a panel."""
        return make("load", (self.panels, *self.indices, *self.corner), hint=self.value.type)

    def given_to(self, kernel: Node) -> Node:
        """Replaces the memory, an operand of a kernel, by the panels, which a kernel packs in
        parallel.
        """
        block, args = kernel.blocks[0], list(kernel.args)
        at = block.params.index(self.memory)
        out = param("o0", self.panels.type)
        names = (f"o0_{i}" for i in range(len(self.indices)))
        versions = [out, *(Node("var", (), {"name": name}, out.type) for name in names)]
        made = make("store", (versions[-1], self.value, *self.indices, *self.corner))
        for variable, outer, inner in reversed([*zip(self.indices, versions, versions[1:])]):
            body = Block((variable, inner), (made,))
            made = make("loop", (outer,), {"kind": "parallel"}, (body,))
        attrs = {"level": "loop", "name": "pack", "ops": ("transpose",)}
        type_ = TensorType(self.panels.dtype, self.panels.shape)
        packing = Block((self.memory, out), (made,))
        args[at] = Node("kernel", (args[at],), attrs, type_, (packing,))
        params = [self.panels if p is self.memory else p for p in block.params]
        return kernel.rebuilt(args, blocks=[Block(params, block.results, block.names, block.locs)])


def _why_not_packed(product: BlockProduct) -> str:
    """Returns why a panel cannot be packed; "" if it can. The neighbours that an instruction
    multiplies are along the last axis of the rows, which is a reduction axis.
    """
    if PAIR in product.panel_names:
        return "the panel is packed already"
    if in_windows(unconverted(product.panel)):
        return "columns are read through windows"
    last = product.row_names[-1]
    if product.group > 1 and (
        last != product.contracted[-1] or static(product.rows.shape[-1]) % product.group
    ):
        return f"groups of {product.group} neighbours do not divide the rows"
    return ""


def _copy(edit: Edit, product: BlockProduct) -> Node:
    """Builds the copy of a panel in local memory, and loads it."""
    value = _packed(product)
    hint = TensorType(value.dtype, value.shape, "local")
    memory = make("alloc", (), {"name": edit.names.own("panel")}, hint=hint)
    place = product.corner(value.tensor.rank)
    return make("load", (make("store", (memory, value, *place)), *place), hint=value.type)


def _packed(product: BlockProduct) -> Node:
    """Builds the panel of a product in packed order: reduction axes, then columns, then groups."""
    value, lane = unconverted(product.panel), product.lane
    order = [*product.contracted, lane]
    sizes = {n: size for n, size in product.sizes.items() if n in order}
    if product.group > 1:
        *_, last, _ = order
        order.append(PAIR)
        rest = sizes[last] // product.group
        split = {last: rest, PAIR: product.group}
        sizes = dict(p for n, s in sizes.items() for p in (split if n == last else {n: s}).items())
    value = converted(reshaped(value, [*sizes.values()]), product.panel.dtype)
    perm = tuple([*sizes].index(n) for n in order)
    is_same = perm == tuple(range(len(perm)))
    return value if is_same else make("transpose", (value,), {"perm": perm})


def _on_panel(product: BlockProduct, panel: Node) -> Node:
    """Builds the `dot` on a packed panel."""
    rows, behind = product.rows, [PAIR] if product.group > 1 else []
    if behind:
        *outer, last = map(static, rows.shape)
        rows = reshaped(rows, (*outer, last // product.group, product.group))
    names = [*product.row_names, *behind], [*product.contracted, product.lane, *behind]
    return product.rebuilt(rows, panel, *names)


OFFSETS = {mma.name: mma for mma in MMAS if mma.offset}
WIDE = DTYPES["i16"]  # type of elements with the offset
ROW = "row"  # the axis of one row of zeros


@dataclass(frozen=True)
class Compensate(ProductStep, name="compensate", only=Cpu):
    """Make the rows of an integer matrix product unsigned.

        %d = dot(%a, %b)      compensate vpdpbusd    %o = dot(add(zeros, 128), %b) : i32<1x64>
          : i32<6x64>                                %d = sub(dot(add(%a, 128), %b), broadcast(%o))

    An offset of half the range makes the rows unsigned. That adds the offset times the sum of each
    column. This is the product of a row of zeros with the same offset: computed once for all tiles
    of rows of a panel, and subtracted. Legal for one `dot` of blocks of the types of the
    instruction. Without this step, each tile computes one more row. CPUs only.

    Source: the compensation of signed rows in oneDNN (developer guide, "Nuances of int8
    computations").

    Attributes:
        instruction: the instruction that multiplies unsigned by signed numbers.
    """

    instruction: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        mma = OFFSETS.get(self.instruction)
        if mma is None:
            yield f"{self.instruction} takes no unsigned rows, as {', '.join(OFFSETS)}"
            return
        yield why_not_one(kernel)
        (product,) = block_products(kernel)
        types = product_types(product.dot)
        if types != mma.types:
            yield f"{mma.name} does not multiply {types[0]} by {types[1]}"
        if isinstance(target, Cpu) and mma not in target.mmas(mma.types):
            yield f"{target.name} has no {mma.name}"

    def change(self, edit: Edit, product: BlockProduct) -> Node:
        """Builds the product of rows with the offset, minus what the offset adds."""
        b, dot, lane = Builder(), product.dot, product.lane
        offset = OFFSETS[self.instruction].offset
        names = [n for n in product.panel_names if n != lane]
        shape = 1, *(product.sizes[n] for n in names)
        (start,) = product.corner(1)
        row = _zeros(b, product.rows.tensor.with_shape(shape), start)
        rule = f"{ROW} {' '.join(names)}, {' '.join(product.panel_names)} -> {ROW} {lane}"
        hint = dot.tensor.with_shape((1, product.sizes[lane]))
        sides = b.add(converted(row, WIDE), offset), converted(product.panel, WIDE)
        offsets = b.op("dot", sides, {"rule": rule}, hint=hint)
        panel = converted(dot.args[product.side], WIDE)
        made = product.rebuilt(b.add(converted(product.rows, WIDE), offset), panel)
        offsets = b.reshape(offsets, type=hint.with_shape((product.sizes[lane],)))
        if len(result_names(dot)) > 1:
            offsets = b.broadcast(offsets, axes=(1,), type=dot.type)
        return b.sub(made, offsets)


def _zeros(b: Builder, like: TensorType, start: Node) -> Node:
    """Allocates local memory of zeros, and loads it as a block. `start`: the index 0."""
    size = prod(map(static, like.shape))
    memory = b.alloc(name="zeros", type=TensorType(like.dtype, (size,), "local"))
    line = TensorType(like.dtype, (size,), "tile")
    memory = b.store(memory, b.broadcast(constant(0, like.dtype), axes=(), type=line), start)
    return b.reshape(b.load(memory, start, type=line), type=like)
