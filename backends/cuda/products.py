"""Prints matmuls of tiles distributed over threads: of warps (mma.sync) and warpgroups (wgmma)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stack.ir import ops
from stack.ir.node import Node
from stack.ir.warp_ops import GROUP_ROWS, group_operands

from .expressions import Unprintable, c_type
from .values import CudaValue, at, registers_of

if TYPE_CHECKING:
    from .printer import Printer

UNIT = 16  # bytes; the unit of addresses in matrix descriptors


class Products:
    """Prints the matmuls of one kernel; each public method is an op."""

    def __init__(self, printer: Printer) -> None:
        self.p = printer

    def load_matrix(self, node: Node) -> CudaValue:
        """Returns the row and column of a matrix in shared memory as text; prints no load.

        The matmul that reads the matrix loads a part of it in each step along the contracted axis.
        """
        p, (memory, row, column) = self.p, node.args
        pitch = p.access.strides(memory.tensor)[0]
        if node.dtype.bits != 16 or pitch % 8:
            raise Unprintable(f"a matrix {node.type} with rows of {pitch} elements")
        return CudaValue(f"{p.value(row).text}, {p.value(column).text}")

    def mma_sync(self, node: Node) -> CudaValue:
        """Prints a warp's matmul as an unrolled loop over the contracted axis.

        An iteration loads all rows of the left operand, then columns of the right one in pairs of
        eight.
        """
        p, (a, b, c) = self.p, node.args
        if c.dtype.name != "f32" or a.dtype.name not in ("f16", "bf16"):
            raise Unprintable(f"a matmul of {a.dtype} that accumulates in {c.dtype}")
        rows, depth = registers_of(a.tensor)
        width = registers_of(c.tensor)[1]
        down, pairs = rows // 2, width // 4
        made = p.registers(node, rows * width)
        p.put(f"EACH({made.count}) {made.text}[i] = {p.value(c).element};")
        left, right = (self._operand(x, x is a) for x in (a, b))
        p.put('_Pragma("unroll")')
        p.put(f"for (int k = 0; k < {depth // 4}; ++k) {{")
        p.put(f"  unsigned left[{down}][4];")
        p.put(f"  EACH({down}) {left('left[i]')};")
        p.put(f"  EACH({pairs}) {{")
        p.put("    unsigned right[4];")
        p.put(f"    {right('right')};")
        p.put('    _Pragma("unroll")')
        p.put(f"    for (int r = 0; r < {down}; ++r) {{")
        p.put(f"      float* const low = {made.text} + r * {2 * width} + i * 4;")
        for column in (0, 2):
            of = f"low + {column}, low + {width + column}" if column else f"low, low + {width}"
            second = f"right + {column}" if column else "right"
            p.put(f"      mma_{a.dtype}({of}, left[r], {second});")
        p.put("    }")
        p.put("  }")
        p.put("}")
        return made

    def warpgroup_mma(self, node: Node) -> CudaValue:
        """Prints a warpgroup's matmul as steps along the contracted axis.

        Each step has one instruction per 64 rows of the result.
        """
        p, c = self.p, node.args[0]
        left, right = group_operands(node)
        kind, depth = right[0].dtype.name, int(node.attrs["depth"])
        if c.dtype.name != "f32" or kind not in ("f16", "bf16"):
            raise Unprintable(f"a matmul of {kind} that accumulates in {c.dtype}")
        rows, width = registers_of(c.tensor)
        first, second = (int(t) for t in node.attrs["transposed"])
        is_sum = not is_zeros(c)
        if self._is_own(c):  # accumulate in place; the registers may not be read until the wait
            made = p.value(c)
        else:
            made = p.registers(node, rows * width)
            if is_sum:
                p.put(f"EACH({made.count}) {made.text}[i] = {p.value(c).element};")
        a = self._rows(left[0], depth) if len(left) == 1 else self._matrix(left, depth, first)
        b = self._matrix(right, depth, second)
        if is_sum:
            p.put(f"EACH({made.count}) settle({made.text}[i]);")
        p.put("groups_begin();")
        p.put('_Pragma("unroll")')
        p.put(f"for (int k = 0; k < {depth // 16}; ++k) {{")
        p.put(f"  EACH({rows // 2}) {{")
        p.put(f"    float* const low = {made.text} + i * {2 * width};")
        adds = "true" if is_sum else "k > 0"
        function = f"multiply_{width * 4}_{kind}"
        if len(left) == 1:
            call = f"{function}<{second}>(low, low + {width}, {a('i')}, {b('0')}, {adds})"
        else:
            call = f"{function}<{first}, {second}>(low, low + {width}, {a('i')}, {b('0')}, {adds})"
        p.put(f"    {call};")
        p.put("  }")
        p.put("}")
        p.put("groups_commit();")
        return made

    def _is_own(self, node: Node) -> bool:
        """True if a value has its own registers and a single reader, so they can be overwritten."""
        makes = node.op == "var" or ops.lookup(node.op).kind == "elementwise"
        return makes and not self.p.value(node).each and self.p.uses[node] == 1

    def _rows(self, arg: Node, depth: int) -> Callable[[str], str]:
        """Returns a function from a block of rows to the text of its registers.

        They belong to step k along the contracted axis, which contracts 16 elements. The left
        operand is in registers, packed in pairs.
        """
        name = self._packed(arg, True)
        return lambda i: f"{name}[{i} * {depth // 16} + k]"

    def _matrix(self, operand: Sequence[Node], depth: int, transposed: int) -> Callable[[str], str]:
        """Returns a function from a row block to the text of its wgmma descriptor at step k.

        The matrix is in swizzled shared memory. A right operand is a single block, "0".
        """
        p, (memory, row, column) = self.p, operand
        swizzle, size = p.swizzles[memory], memory.dtype.bytes
        line = swizzle // size
        rows = int(memory.tensor.shape[0])  # pyright: ignore[reportArgumentType]
        places = f"{p.value(row).element}, {p.value(column).element}"
        start = f"{p.value(memory).text} + corner_of<{rows}, {line}>({places})"
        name = p.fresh("matrix")
        panel = rows * swizzle
        kind = f"{swizzle}, {panel if transposed else UNIT}"
        p.put(f"const unsigned long long {name} = matrix_at<{kind}>({start});")
        across = GROUP_ROWS // line * panel if transposed else GROUP_ROWS * swizzle
        deep = 16 * swizzle
        steps = f"k * {deep // UNIT}"
        if not transposed:
            each = line // 16  # steps within a line of a row
            steps = f"k % {each} * {16 * size // UNIT} + k / {each} * {panel // UNIT}"
        return lambda i: f"{name} + {steps}" + (f" + {i} * {across // UNIT}" if i != "0" else "")

    def warpgroup_wait(self, node: Node) -> CudaValue:
        value = self.p.value(node.args[0])
        self.p.put(f"groups_wait<{node.attrs['pending']}>();")
        self.p.put(f"EACH({value.count}) settle({value.text}[i]);")
        return value

    def _operand(self, arg: Node, is_left: bool) -> Callable[[str], str]:
        """Returns a function from four registers to the code that fills them at step k.

        The code reads block i: 16 rows of a left operand, or 16 columns of a right one.
        """
        source = arg.args[0] if arg.op == "transpose" else arg
        if source.op == "load_matrix":
            return self._matrices(source, is_left)
        name, depth = self._packed(arg, is_left), registers_of(arg.tensor)[is_left]
        return lambda to: f"memcpy({to}, {name}[i * {depth // 4} + k], 16)"

    def _packed(self, arg: Node, is_left: bool) -> str:
        """Declares registers with an operand's elements packed in pairs; returns their name.

        There are four registers per 16 rows (or columns) and step along the contracted axis.
        """
        rows, depth = registers_of(arg.tensor)[:: 1 if is_left else -1]
        p = self.p
        # in a block of eight rows or columns by eight along the contracted axis, a pair is adjacent
        # there
        block = ("i % 2", "i / 2") if is_left else ("i / 2", "i % 2")
        place = f"(r / {depth // 4} * 2 + {block[0]})", f"(r % {depth // 4} * 4 + {block[1]} * 2)"
        held = p.value(arg).element
        if is_left:
            first, step = f"{place[0]} * {depth} + {place[1]}", 1
        else:
            first, step = f"{place[1]} * {rows} + {place[0]}", rows
        name, count = p.fresh("packed"), rows // 2 * (depth // 4)
        pair = f"{at(held, first)}, {at(held, f'{first} + {step}')}"
        function = "pair_of"
        if arg in p.packed:
            function = f"narrow_pair<{c_type(arg.dtype)}>"
        p.put(f"unsigned {name}[{count}][4];")
        p.put('_Pragma("unroll")')
        p.put(f"for (int r = 0; r < {count}; ++r) EACH(4) {name}[r][i] = {function}({pair});")
        return name

    def _matrices(self, node: Node, is_left: bool) -> Callable[[str], str]:
        """As `_operand`, for an operand in shared memory: `ldmatrix` loads four 8 x 8 matrices.

        Eight lanes give the row addresses of each of the four.
        """
        p, memory = self.p, node.args[0]
        pitch = p.access.strides(memory.tensor)[0]
        row, column = (p.value(x).text for x in node.args[1:])
        function, steps = "load_matrices", (16 * pitch, 16)
        if node.attrs["transposed"]:
            function, steps = "load_matrices_turned", (16, 16 * pitch)
            row, column = column, row
        lanes = "threadIdx.x % 16", "threadIdx.x / 16 * 8"
        if is_left == node.attrs["transposed"]:
            lanes = "threadIdx.x / 16 * 8 + threadIdx.x % 8", "threadIdx.x / 8 % 2 * 8"
        base, kind = p.fresh("rows"), c_type(node.dtype)
        start = f"({row} + int({lanes[0]})) * {pitch} + {column} + int({lanes[1]})"
        p.put(f"const {kind}* const {base} = {p.value(memory).text} + {start};")
        return lambda to: f"{function}({to}, {base} + i * {steps[0]} + k * {steps[1]})"


def is_zeros(node: Node) -> bool:
    """True if a tile is a constant 0."""
    source = node.args[0] if node.op == "broadcast" else node
    return source.op == "const" and not source.attrs["value"].array.any()
