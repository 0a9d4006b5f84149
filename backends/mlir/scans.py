"""Running values of a vector, such as cumulative sums, as MLIR text."""

from __future__ import annotations

from stack.ir.algebra import COMBINE
from stack.ir.node import Node
from stack.ir.space import identity

from .elementwise import apply, shaped
from .statements import Statements, lanes_of


def scan(p: Statements, node: Node) -> str:
    """Print the running values of a vector, from its first lane or from its last."""
    dtype, op, back = node.dtype, COMBINE[node.attrs["kind"]], node.attrs["reverse"]
    x, lanes = p.value(node.args[0]), lanes_of(node.tensor)
    width = min(p.cpu.vector_bytes // max(dtype.bytes, 1), 1 << (lanes - 1).bit_length())
    t, whole = shaped(dtype, width), shaped(dtype, lanes)
    none = p.number(identity(node.attrs["kind"], dtype), dtype, width)
    nothing = p.number(identity(node.attrs["kind"], dtype), dtype, lanes)

    def shuffled(a: str, b: str, picks: list[int], type_: str) -> str:
        return p.do(f"vector.shuffle {a}, {b} {picks} : {type_}, {type_}")

    def moved(a: str, by: int) -> str:
        """Shift by some lanes, and fill with the identity."""
        picks = [i - by for i in range(width)] if not back else [i + by for i in range(width)]
        return shuffled(a, none, [i if 0 <= i < width else width for i in picks], t)

    parts: dict[int, str] = {}
    before = ""
    begins = range(0, lanes, width)
    for begin in reversed(begins) if back else begins:
        picks = [i if i < lanes else lanes for i in range(begin, begin + width)]
        part, by = x if width == lanes else shuffled(x, nothing, picks, whole), 1
        while by < width:
            part, by = apply(p, op, dtype, [part, moved(part, by)], width), 2 * by
        part = apply(p, op, dtype, [part, before], width) if before else part
        before = shuffled(part, part, [0 if back else width - 1] * width, t)
        parts[begin] = part
    made, count = parts[0], width
    for begin in begins[1:]:
        picks = [*range(min(begin + width, lanes))]
        types = f"{shaped(dtype, count)}, {t}"
        made, count = p.do(f"vector.shuffle {made}, {parts[begin]} {picks} : {types}"), len(picks)
    return made if lanes >= width else shuffled(made, made, [*range(lanes)], t)
