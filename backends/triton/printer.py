"""Prints a tile-level kernel node as the Triton source of one module.

Grid loops become a decomposition of the program id. A broadcast is printed as `x[:, None]` if
Triton's implicit broadcasting does the rest. Memory states have no names: the result of a store is
the pointer that it wrote through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stack.errors import StackError
from stack.ir import ops
from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.node import Block, Node, topological, walk
from stack.ir.traits import (
    contractions,
    converts,
    is_input,
    is_item,
    is_loop,
    is_number,
    place_of,
)
from stack.ir.types import TensorType

from .access import Access, Descriptor, access_of
from .functions import used
from .source import Source
from .values import Values, broadcast_shape, shape_of

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def either(a, b):
    return a | b


"""


def _is_line(node: Node) -> bool:
    """True if a node loads a tile of rank 1."""
    return node.op == "load" and node.tensor.rank == 1


def print_kernel(
    node: Node, name: str, readable: bool = False, arguments: Sequence[str] = ()
) -> Source:
    """Returns the Triton source of a tile-level kernel node.

    Args:
        readable: use the IR's names and source lines. Without them, equal kernels have equal text,
            which is the cache key.
        arguments: readable names of operands and results, from where the kernel is used.

    Raises:
        StackError: names the op for which there is no code.
    """
    return _Printer(node, name, readable, arguments).source()


def _chain(nest: Node) -> list[Node]:
    """Returns nested grid loops, outermost first. Raises StackError."""
    chain: list[Node] = []
    loops = [nest]
    while loops:
        if len(loops) > 1:
            raise StackError("the triton backend needs grid loops that are perfectly nested")
        chain += loops
        loops = [n for n in loops[0].blocks[0].nodes if is_loop(n, "grid")]
    return chain


def _extents(chain: Sequence[Node]) -> list[int]:
    return [int(loop.blocks[0].params[0].attrs["extent"]) for loop in chain]


def _contracts(body: Block) -> bool:
    """True if a product and what is added to it may be rounded once: in kernels with matmuls.

    Other kernels read and write memory most of the time, and a value that two of them compute must
    be equal in both: max pooling compares values with their largest. A kernel that rounds to 16
    bits on purpose casts down, then up again; LLVM would compute what is between two such casts in
    16 bits, and contract it.
    """
    nodes = [node for _, node in walk(body)]
    rounds = any(converts(n) and _narrows(n.args[0]) and n.dtype.bits > 16 for n in nodes)
    return bool(contractions(nodes)) and not rounds


def _narrows(node: Node) -> bool:
    return converts(node) and node.dtype.kind == "f" and node.dtype.bits == 16


class _Printer(Values):
    def source(self) -> Source:
        parameters = [self._fresh(self._parameter(p)) for p in self.body.params]
        self.text.update(zip(self.body.params, parameters, strict=True))
        self.nests = [n for n in self.body.nodes if is_loop(n, "grid")]
        programs = self._programs()
        self._block(self.body)
        arguments = [*parameters, *self.descriptors.values()]
        head = f"@triton.jit\ndef {self.name}({', '.join(arguments)}):\n"
        body = "\n".join(self.lines) or "    pass"
        head = f"{HEAD}{used(body)}{head}"
        attrs = self.node.attrs
        return Source(
            f"{head}{body}\n",
            self.name,
            programs,
            int(attrs.get("warps") or 4),
            int(attrs.get("stages") or 2),
            _contracts(self.body),
            tuple(parameters),
            tuple(p.dtype.name for p in self.body.params),
            tuple(self.descriptors),
            ("",) * head.count("\n") + tuple(self.origins),
        )

    def _parameter(self, node: Node) -> str:
        known = self.memories.get(node)
        return str(node.attrs["name"]) if known is None else f"{known}_ptr"

    # ---- the grid

    def _programs(self) -> int:
        """Returns the size of the launch grid: the programs of all nests of grid loops."""
        if not self.nests:
            return 1
        shared = int(self.node.attrs.get("programs") or 0)
        return shared or sum(math.prod(_extents(_chain(n))) for n in self.nests)

    def _grid(self, nest: Node) -> None:
        """Print a nest of grid loops; indices come from the program id, the innermost fastest.

        Several nests share the launch grid: each takes a range of program ids, the first nest the
        first ones. Each nest is an `if` of its own, because Triton gives all branches of one `if`
        separate shared memory.
        """
        before, chain = self.depth, _chain(nest)
        total = math.prod(_extents(chain))
        shared = int(self.node.attrs.get("programs") or 0)
        pid = "pid"
        if shared:
            # flattening overlaps the end of one tile with the start of the next
            flat = ", flatten=True" if nest is self.nests[0] else ""
            self._line(f"for pid in tl.range(tl.program_id(0), {total}, {shared}{flat}):")
            self.depth += 1
        else:
            at = self.nests.index(nest)
            first = sum(math.prod(_extents(_chain(n))) for n in self.nests[:at])
            if at == 0:
                self._line("pid = tl.program_id(0)")
            if len(self.nests) > 1:
                tests = [f"pid >= {first}"] * (at > 0)
                tests += [f"pid < {first + total}"] * (at < len(self.nests) - 1)
                self._line(f"if {' and '.join(tests)}:")
                self.depth += 1
            if at:
                pid = self._fresh("left")
                self._line(f"{pid} = pid - {first}")
        self._indices(chain, pid)
        self._block(nest.blocks[0])
        self.depth = before

    def _indices(self, chain: Sequence[Node], pid: str) -> None:
        extents, indices = _extents(chain), [loop.blocks[0].params[0] for loop in chain]
        rest, inside = pid, 1
        names = [self._fresh(str(v.attrs["name"])) for v in indices]
        at = len(chain)
        group = int(chain[-1].attrs.get("group") or 0)
        if group and len(chain) >= 2:
            self._grouped(names[-2:], extents[-2:], group, pid)
            at, inside = len(chain) - 2, extents[-1] * extents[-2]
        for i in reversed(range(at)):
            rest = pid if inside == 1 else f"{pid} // {inside}"
            text = rest if i == 0 else f"({rest}) % {extents[i]}"
            self._line(f"{names[i]} = {text}")
            inside *= extents[i]
        self.programs.update(indices)
        for var, name in zip(indices, names, strict=True):
            if var.dtype.name == "i64":
                self._line(f"{name} = {name}.to(tl.int64)")
            self.text[var] = name
            self.actual[var] = ()

    def _grouped(self, names: Sequence[str], extents: Sequence[int], group: int, pid: str) -> None:
        """Prints the two tile indices of a program, in an order that reuses tiles in the L2 cache.

        Programs with consecutive ids cover a group of `group` rows of tiles, column by column.
        """
        rows, lanes = extents
        self._line(f"tile = {pid} % {rows * lanes}")
        self._line(f"first = tile // {group * lanes} * {group}")
        self._line(f"height = min({rows} - first, {group})")
        self._line(f"{names[0]} = first + tile % {group * lanes} % height")
        self._line(f"{names[1]} = tile % {group * lanes} // height")

    # ---- statements

    def _block(self, block: Block) -> None:
        """Print the statements of a block, loops as early as possible.

        Values loaded before a loop stay in registers, so only what the loop needs is printed before
        it. Rank-1 loads come before matmuls, so that their latency overlaps. Statements that do not
        depend on the program id are printed just before their first use.
        """
        grid = [n for n in block.nodes if is_loop(n, "grid")]
        if grid:
            for node in block.nodes:
                if node in grid or is_item(node):
                    self._statement(node)
            return
        nodes = list(block.nodes)
        if block.params and block.params[0] in self.programs:
            nodes = topological(block.results, lambda n: n not in self.text)
        done: set[Node] = set()
        early = [n for n in nodes if _is_line(n)] if contractions(nodes) else []
        loops = [n for n in nodes if is_loop(n, "serial")]
        for first in (*early, *loops):
            needed = set(topological([first]))
            if first in early and not needed.isdisjoint(contractions(nodes)):
                continue
            for node in nodes:
                if node in needed and node not in done:
                    done.add(node)
                    self._statement(node)
        for node in nodes:
            if node not in done:
                self._statement(node)

    def _statement(self, node: Node) -> None:
        if is_input(node) or is_number(node):
            return
        if is_item(node):
            self.text[node] = self.text[node.args[0]].split(", ")[place_of(node)]
            self.actual[node] = shape_of(node)
            return
        if ops.lookup(node.op).kind == "elementwise":
            self._elementwise(node)
            return
        maker = getattr(self, f"_{node.op}", None)
        if maker is None:
            raise StackError(f"the triton backend has no code for {node.op!r}")
        maker(node)

    # ---- memory

    def _load(self, node: Node) -> None:
        access = self._access(node, node.tensor)
        if access.descriptor is not None:
            self._assign(node, f"{self._described(access.descriptor)}.load([{access.at}])")
            if shape_of(node) != access.descriptor.block:
                name = self.text[node]
                self._line(f"{name} = tl.reshape({name}, {list(shape_of(node))})")
            return
        mask = f", mask={access.mask}, other={access.other}" if access.mask else ""
        hint = node.attrs.get("evict")
        kept = f', eviction_policy="evict_{hint}"' if hint else ""
        self._assign(node, f"tl.load({access.pointer}{mask}{kept})")

    def _store(self, node: Node) -> None:
        value = node.args[1]
        self._settle(value)
        access = self._access(node, value.tensor)
        self.text[node] = self.text[node.args[0]]
        if access.descriptor is not None:
            text = self._full(value)
            if shape_of(value) != access.descriptor.block:
                text = f"tl.reshape({text}, {list(access.descriptor.block)})"
            self._line(f"{self._described(access.descriptor)}.store([{access.at}], {text})", node)
            return
        mask = f", mask={access.mask}" if access.mask else ""
        kept = ', cache_modifier=".cs"' if node.attrs.get("evict") == "first" else ""
        self._line(f"tl.store({access.pointer}, {self._full(value)}{mask}{kept})", node)

    def _access(self, node: Node, tile: TensorType) -> Access:
        index, mask, other = access_parts(node)
        extents = tuple(int(s) for s in tile.shape)  # pyright: ignore[reportArgumentType]
        access = access_of(
            self.text[node.args[0]],
            node.args[0].tensor,
            tile,
            [self._value(i) for i in index],
            blocks=all(i.tensor.rank == 0 for i in index),
            passes=self._passes(node, index, extents),
            mask="" if mask is None else self._value(mask),
            other="" if other is None else self._value(other),
            described=self.has_dot and (node.op == "store" or node in self.copied),
            is_64=any(i.dtype.name == "i64" for i in index),
        )
        if tile.rank and any(i.tensor.rank for i in index):
            # the mask, and a value to store, must have the shape of the pointers
            if broadcast_shape([self.actual.get(i, ()) for i in index]) != extents:
                spread = f"tl.broadcast_to({access.pointer}, {list(extents)})"
                return replace(access, pointer=spread)
        return access

    def _passes(self, node: Node, index: Sequence[Node], extents: tuple[int, ...]) -> list[bool]:
        """Returns for each axis of memory whether the tile of a clipped access may extend past its
        end.
        """
        if not node.attrs.get("clip"):
            return [False] * len(index)
        found: list[bool] = []
        sizes = shape_of(node.args[0])
        extents = (1,) * (len(sizes) - len(extents)) + extents
        for start, size, extent in zip(index, sizes, extents, strict=True):
            found.append(extent > 1 and self.integers.may_pass(start, extent, size))
        return found

    def _described(self, descriptor: Descriptor) -> str:
        if descriptor not in self.descriptors:
            self.descriptors[descriptor] = self._fresh(
                f"{descriptor.memory.removesuffix('_ptr')}_tiles"
            )
        return self.descriptors[descriptor]

    # ---- loops

    def _loop(self, node: Node) -> None:
        limits, init = loop_parts(node.args, node.attrs)
        block = node.blocks[0]
        var, *carried = block.params
        if node.attrs["kind"] == "grid":
            for inner, outer in zip(carried, init, strict=True):
                self.text[inner] = self.text[outer]
            known = dict(self.text)
            if node in self.nests:
                self._grid(node)
            else:
                self._block(block)
            made = ", ".join(self.text[r] for r in block.results)
            self.text = {**known, node: made}  # values of one nest are invisible in another
            return
        names: list[str] = []
        for inner, outer in zip(carried, init, strict=True):
            if inner.tensor.space == "global":
                self.text[inner] = self.text[outer]
                names.append(self.text[outer])
                continue
            self._settle(outer)
            name = self._fresh(str(inner.attrs["name"]))
            self._line(f"{name} = {self._full(outer)}")
            self.text[inner], self.actual[inner] = name, shape_of(inner)
            names.append(name)
        bounds = [self._value(v) for v in limits] or ["0", str(var.attrs["extent"])]
        if node.attrs["kind"] == "branch":
            self._line(f"if {bounds[1]} > {bounds[0]}:", node)
            self.text[var], self.actual[var] = "0", ()
            self._iteration(block, carried, names)
            self._left(node, names)
            return
        name = self._fresh(str(var.attrs["name"]))
        if node.attrs.get("ahead"):
            bounds.append(f"num_stages={node.attrs['ahead']}")
        self._line(f"for {name} in tl.range({', '.join(bounds)}):", node)
        self.text[var], self.actual[var] = name, ()
        if var.dtype.name == "i64":
            self._line(f"    {name} = {name}.to(tl.int64)")
        self._iteration(block, carried, names)
        self._left(node, names)

    def _left(self, node: Node, names: Sequence[str]) -> None:
        """Makes the text of a loop node the variables of its loop-carried values."""
        self.text[node] = ", ".join(names)
        self.actual[node] = () if len(names) > 1 else shape_of(node)

    def _iteration(self, block: Block, carried: Sequence[Node], names: Sequence[str]) -> None:
        """Print one iteration of a loop, and assign its results to the carried values."""
        self.depth += 1
        self._block(block)
        pairs = [
            (n, self._final(r))
            for n, r, c in zip(names, block.results, carried, strict=True)
            if c.tensor.space != "global"
        ]
        pairs = [(n, v) for n, v in pairs if n != v]
        left = {n for n, _ in pairs}
        if any(v in left for _, v in pairs):
            self._line(f"{', '.join(n for n, _ in pairs)} = {', '.join(v for _, v in pairs)}")
        else:
            for n, v in pairs:
                self._line(f"{n} = {v}")
        self.depth -= 1

    def _final(self, node: Node) -> str:
        self._settle(node)
        return self._full(node)
