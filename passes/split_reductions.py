"""split_reductions: reduce in two stages if one stage would leave most of a GPU idle.

A reduction runs in one program for each tile of its result. Sums over the columns of a long array,
full sums, and matmuls of few tiles with a long contracted axis have too few programs. Their reduced
axis becomes (parts, rest): a first stage reduces the rest, a second one the parts. For a dot this
is split-K: the parts become a batch axis, and a sum follows. Partial sums of 16-bit floats are f32.
A stream runs on parts of its axis too; see `streaming.parts`.

A stage is priced by waves of programs; see `gpu_products.tile_choice` for matmuls. A schedule that
a user wrote for the value sets the parts: `c: k=1024@grid m=64 n=64`.

Columns of rows that are not aligned in memory are reduced several rows at a time; see
`rules.folded_rows`.

On a CPU, `rules.shared_sums` picks the reductions that have too few rows for its threads, and those
over axes that were merged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.errors import UsageError
from stack.ir.axes import LETTERS
from stack.ir.builder import Builder, converted, make, padded, reshaped
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import converts, is_item, is_reduction
from stack.ir.types import DType
from stack.passes.gpu_products.tile_choice import Product, best_seconds, may_round
from stack.passes.policies.stream_parts import best_part, has_parts
from stack.passes.rules.dot_layout import Axes, dot_axes, make_dot
from stack.passes.rules.folded_rows import folded, rows_together
from stack.passes.rules.shared_sums import is_stage, shared, unmerged
from stack.passes.streaming.folded_rows import folded_stream, stream_rows
from stack.passes.streaming.parts import in_parts
from stack.passes.tiling.frame import power_of_two, wide
from stack.rewrite.engine import Scope, Simple, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.schedule import PART, part_of
from stack.target import Cpu, Gpu


@dataclass(frozen=True)
class SplitReductions(Pass, needs=("reduce", "dot", "stream")):
    """Reduce in two stages if one has too few programs for the machine.

    Attributes:
        parts: partial results of each reduction, dot and stream that is long enough; 0 lets a cost
            model choose, and skip those that are fast enough.
        streams: True if the kernels of streams can compute one part.
    """

    takes_schedules: ClassVar[bool] = True
    parts: int = 0
    streams: bool = True

    def run(self, func: Func, log: Log) -> Func:
        if isinstance(log.target, Cpu):
            rules = [("unmerge_reduce", unmerged), ("split_reduce", shared)]
            return rewrite(func, [Simple(name, ("reduce",), rule) for name, rule in rules], log)
        rules = [
            Simple("split_reduce", ("reduce",), self._reduce),
            Simple("split_dot", ("dot",), self._dot),
        ]
        if self.streams:
            rules.append(Simple("split_stream", ("stream",), self._stream))
        return rewrite(func, rules, log)

    # ---- reductions

    def _reduce(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        source, axes = node.args[0], [int(a) for a in node.attrs["axes"]]
        sizes = [s for s in source.shape if isinstance(s, int)]
        if not axes or len(sizes) < source.tensor.rank or 0 in sizes or node.dtype.kind == "c":
            return None
        if is_stage(node, scope):
            return None
        kept = math.prod(s for i, s in enumerate(sizes) if i not in axes)
        extent = math.prod(sizes[a] for a in axes)
        is_column = source.tensor.rank - 1 not in axes
        lines = is_column and _reduces_lines(source, scope)
        asked = _asked(node, "r", extent, scope)
        parts = asked or self.parts
        if lines and not parts:
            parts = _walk_parts([sizes[a] for a in axes], sizes[-1], scope.log.gpu)
        rows = rows_together(node) if is_column and not parts else 1
        if rows > 1 and extent >= rows * scope.log.gpu.parts.least:
            _note_fold(node, rows, scope)
            gpu, dtype = scope.log.gpu, source.dtype
            return folded(
                node, rows, lambda line, count: _best_parts(line, count, dtype, True, gpu)
            )
        parts = parts or _best_parts(kept, extent, source.dtype, is_column, scope.log.gpu)
        own = [sizes[a] for a in axes]
        split = _one_long(own, _split_axes(own, parts) or [1] * len(axes), scope.log.gpu)
        if math.prod(split) < 2 or split == own:
            return None
        total = math.prod(split)
        scope.log.note(
            f"{_name(node, scope)}: {extent} elements for each of {kept} in {total} parts,"
            f" for {scope.log.gpu.processors} processors"
        )
        made = _in_stages(node, dict(zip(axes, split, strict=True)))
        return _with_name(made, node, op, scope) if asked else made

    # ---- dots

    def _dot(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        inputs, output = dot_axes(node)
        sizes: dict[str, int] = {}
        for names, arg in zip(inputs, node.args, strict=True):
            for name, size in zip(names, arg.shape, strict=True):
                if not isinstance(size, int):
                    return None
                sizes[name] = size
        contracted = [n for n in inputs[0] if n in inputs[1] and n not in output]
        if len(contracted) != 1 or 0 in sizes.values() or node.dtype.kind == "c":
            return None
        if is_stage(node, scope):
            return None
        depth = sizes[contracted[0]]
        asked = _asked(node, "k", depth, scope)
        parts = (
            asked
            or self.parts
            or _best_dot_parts(node, inputs, output, sizes, depth, scope.log.gpu)
        )
        if parts < 2 or depth % parts or depth // parts < scope.log.gpu.parts.least:
            return None
        scope.log.note(
            f"{_name(node, scope)}: a contracted axis of {depth} for"
            f" {math.prod(sizes[n] for n in output)} elements in {parts} parts,"
            f" for {scope.log.gpu.processors} processors"
        )
        made = _split_dot(node, inputs, output, contracted[0], parts)
        return _with_name(made, node, op, scope) if asked else made

    # ---- streams

    def _stream(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        extent = streamed_extent(node)
        if "part" in node.attrs or not isinstance(extent, int) or not has_parts(node):
            return None
        asked = _asked(node, "k", extent, scope)
        parts = asked or self.parts
        gpu = scope.log.gpu
        least = gpu.parts.least
        rows = 1 if parts else stream_rows(node)
        if rows > 1 and extent >= rows * least * len(node.blocks[0].results):
            _note_fold(node, rows, scope)
            return folded_stream(node, rows, lambda stream: best_part(stream, gpu))
        part = -(-extent // (parts * least)) * least if parts else best_part(node, gpu)
        if not part or part >= extent:
            return None
        scope.log.note(
            f"{_name(node, scope)}: an axis of {extent} in parts of {part},"
            f" for {scope.log.gpu.processors} processors"
        )
        made = in_parts(node, part)
        return _with_name(made, node, op, scope) if asked else made


def _name(node: Node, scope: Scope) -> str:
    return f"%{scope.block.names.get(node, node.op)}"


def _note_fold(node: Node, rows: int, scope: Scope) -> None:
    scope.log.note(f"{_name(node, scope)}: {rows} rows are read as one row, for loads of 16 bytes")


def _asked(node: Node, axis: str, extent: int, scope: Scope) -> int:
    """Returns the number of parts that a given schedule sets, 1 for none; 0 if nobody wrote one.

    Raises UsageError for impossible parts.
    """
    name = scope.block.names.get(node, "")
    part = part_of(scope.log.schedules, name, axis)
    if part is None:
        return 0
    least = scope.log.gpu.parts.least
    if part and (part < least or extent % part):
        rule = f"the least is {least}" if part < least else f"which does not divide {extent}"
        text = scope.log.schedules[name]
        raise UsageError(f"%{name}: schedule {text!r}: axis {axis}: parts of {part}, {rule}")
    return extent // part if part else 1


def _with_name(made: Node, node: Node, op: Builder, scope: Scope) -> Node:
    """Names the partial results, operands of the last stage `made`, after their value, so that its
    schedule applies to them."""
    last = made.args[0] if converts(made) else made
    part = last.args[0].args[0] if is_item(last.args[0]) else last.args[0]
    op.names[part] = scope.block.names[node] + PART
    return made


def _reduces_lines(source: Node, scope: Scope) -> bool:
    """True if some array as large as `source`, with rows of the same length, is reduced along its
    rows."""
    for node in scope.block.all_nodes:
        if not is_reduction(node) or not node.args[0].tensor.rank:
            continue
        other = node.args[0].tensor
        along = tuple(node.attrs["axes"]) == (other.rank - 1,)
        if along and other.shape[-1] == source.shape[-1] and other.size == source.tensor.size:
            return True
    return False


def _walk_parts(sizes: Sequence[int], line: int, gpu: Gpu) -> int:
    """Picks the number of parts for reducing several axes of an array with lines of `line`
    elements, one program for each part. Parts divide the last reduced axis; 0 if no number gives
    enough programs with enough lines each."""
    total, outer = math.prod(sizes), math.prod(sizes[:-1])
    if line < 2:
        return 0
    choices = [outer * d for d in range(1, sizes[-1]) if sizes[-1] % d == 0]
    choices = [p for p in choices if gpu.processors // 4 < p <= total // gpu.parts.lines]

    def cost(parts: int) -> float:
        """Estimates the walk, and writing and reading partial sums in f32."""
        waves = -(-parts // gpu.processors)
        return waves * gpu.processors / parts * (1 + 2 * parts / total)

    return min(choices, key=cost, default=0)


def _seconds(programs: int, bytes_: float, gpu: Gpu) -> float:
    """Estimates the seconds of one stage of a reduction, run by `programs` that each read `bytes_`
    bytes."""
    full = gpu.reducers * gpu.processors
    return -(-programs // full) * bytes_ * full / gpu.memory_rate


def _best_parts(kept: int, extent: int, dtype: DType, is_column: bool, gpu: Gpu) -> int:
    """Returns the number of parts in which a reduction is fastest; 1 for one stage."""
    width = gpu.rows.columns if is_column else max(1, gpu.rows.tile // extent)
    width = min(width, kept)
    programs = -(-kept // width)

    def time(parts: int) -> float:
        rest = -(-extent // parts)
        first = _seconds(programs * parts, width * rest * dtype.bytes, gpu)
        if parts == 1:
            return first
        if parts * rest != extent:
            first *= gpu.parts.padded
        partial = wide(dtype).bytes
        second = _seconds(programs, width * parts * partial, gpu)
        launches = gpu.parts.launches * gpu.launch
        return first + launches + second + kept * parts * partial / gpu.memory_rate

    times = {parts: time(parts) for parts in _candidates(extent, gpu)}
    least = 1.01 * min(times.values())
    best = next(p for p, seconds in times.items() if seconds <= least)  # few are added up fast
    return best if times[best] < gpu.parts.gain * time(1) else 1


def _candidates(extent: int, gpu: Gpu) -> list[int]:
    """Returns the numbers of parts to try for an axis of `extent` elements: its divisors and the
    powers of two, as far as each part is long enough; [1] if none is."""
    most = min(extent // gpu.parts.least, 4 * gpu.reducers * gpu.processors)
    return [p for p in range(1, most + 1) if extent % p == 0 or p & (p - 1) == 0] or [1]


def _split_axes(sizes: Sequence[int], parts: int) -> list[int] | None:
    """Distributes `parts` over the reduced axes, outer axes first; returns the number of parts of
    each axis. None if no axis would be split, or if each part would be one element."""
    found = [1] * len(sizes)
    left = parts
    for i, size in enumerate(sizes):
        if left < 2:
            break
        if size <= left:
            found[i] = size
            left //= size
        elif size // left >= 2:
            found[i] = left
            left = 1
    whole = all(p == s for p, s in zip(found, sizes, strict=True))
    return None if math.prod(found) < 2 or whole else found


def _one_long(sizes: Sequence[int], parts: list[int], gpu: Gpu) -> list[int]:
    """Splits further axes completely, until a part has at most one axis of more than one element,
    or fits in a tile. The kernel of the first stage loops over one axis only."""
    parts = list(parts)
    while True:
        rests = [-(-s // p) for s, p in zip(sizes, parts, strict=True)]
        long = [i for i, rest in enumerate(rests) if rest > 1]
        if len(long) < 2 or math.prod(map(power_of_two, rests)) <= gpu.tile_registers:
            return parts
        parts[long[0]] = sizes[long[0]]


def _in_stages(node: Node, parts: dict[int, int]) -> Node:
    """Returns a reduction in two stages: within each part, then over the parts."""
    x, kind = node.args[0], str(node.attrs["kind"])
    x = _padded(converted(x, wide(node.dtype)), parts, kind)
    shape: list[int] = []
    inner: list[int] = []
    outer: list[int] = []  # of what the first stage leaves
    for axis, size in enumerate(x.shape):
        assert isinstance(size, int)
        count = parts.get(axis, 1)
        if axis not in parts:
            shape.append(size)
            continue
        if count > 1:
            outer.append(len(shape) - len(inner))
            shape.append(count)
        if count < size:
            inner.append(len(shape))
            shape.append(size // count)
    first = make("reduce", (reshaped(x, shape),), {"kind": kind, "axes": tuple(inner)})
    second = make("reduce", (first,), {"kind": kind, "axes": tuple(outer)})
    return converted(second, node.dtype)


def _padded(x: Node, parts: dict[int, int], kind: str) -> Node:
    """Pads an array with the neutral element of the reduction, so that the size of each axis is a
    multiple of its number of parts."""
    high = [-int(s) % parts.get(a, 1) for a, s in enumerate(x.shape) if isinstance(s, int)]
    return padded(x, (0,) * len(high), high, identity(kind, x.dtype))


def _best_dot_parts(
    node: Node,
    inputs: Sequence[Axes],
    output: Axes,
    sizes: dict[str, int],
    depth: int,
    gpu: Gpu,
) -> int:
    """Returns the number of parts in which a matmul is fastest; 1 for one stage."""
    batch = math.prod(sizes[n] for n in output if n in inputs[0] and n in inputs[1])
    height = math.prod(sizes[n] for n in output if n not in inputs[1])
    width = math.prod(sizes[n] for n in output if n not in inputs[0])
    dtype = node.args[0].dtype
    across = inputs[1][-1] in output

    def time(parts: int) -> float:
        product = Product(
            height, width, depth // parts, batch * parts, across=across, rounds=may_round(node)
        )
        expected = best_seconds(product, dtype, gpu)
        if parts == 1:
            return expected
        partial = 8.0 * height * width * batch * parts  # written and read
        return expected + gpu.parts.launches * gpu.launch + partial / gpu.memory_rate

    choices = [1 << i for i in range(7) if depth % (1 << i) == 0 and depth >> i >= gpu.parts.depth]
    best = min(choices or [1], key=time)
    gain = gpu.parts.line_gain if height == 1 else gpu.parts.gain
    return best if time(best) < gain * time(1) else 1


def _split_dot(node: Node, inputs: Sequence[Axes], output: Axes, name: str, parts: int) -> Node:
    """Returns a matmul with parts of its contracted axis as a batch, and the sum over them."""
    taken = {n for names in (*inputs, output) for n in names}
    part = next(c for c in [*LETTERS, *(f"y{i}" for i in range(64))] if c not in taken)
    args: list[Node] = []
    rules: list[Axes] = []
    for names, arg in zip(inputs, node.args, strict=True):
        at = names.index(name)
        size = arg.shape[at]
        assert isinstance(size, int)
        shape = (*arg.shape[:at], parts, size // parts, *arg.shape[at + 1 :])
        args.append(reshaped(arg, shape))
        rules.append([*names[:at], part, *names[at:]])
    dtype = wide(node.dtype)
    narrow = make_dot(args, rules, [part, *output], node)
    dot = make("dot", args, narrow.attrs, hint=narrow.tensor.with_dtype(dtype))
    total = make("reduce", (dot,), {"kind": "sum", "axes": (0,)})
    return converted(total, node.dtype)
