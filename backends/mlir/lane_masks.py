"""Masks of lanes before or after a position, as one comparison of bytes.

For `begin + i < end`, the mask of lane `i` depends on `end - begin` only. As bytes, the lane
numbers fit one vector; as 64-bit positions, they would take eight times as many.
"""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import is_number, is_positions, multiplies, repeats, signs
from stack.ir.types import I64

from .statements import Statements, lanes_of
from .steps import first_of, step_of_index

MOST_LANES = 127  # largest signed byte
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def lane_mask(p: Statements, node: Node) -> str | None:
    """The mask of a comparison of consecutive positions with another one; None for other nodes."""
    lanes = lanes_of(node.tensor)
    if node.op not in MIRRORED or not 0 < lanes <= MOST_LANES or node.args[0].dtype is not I64:
        return None
    steps, reach = [step_of_index(a) for a in node.args], [_reach(a) for a in node.args]
    if steps not in ([1, 0], [0, 1]) or None in reach:
        return None
    if sum(r + 1 for r in reach if r is not None) >> 63:
        return None  # a difference may overflow 64 bits
    op, (place, other) = node.op, node.args
    if steps[0] == 0:
        op, place, other = MIRRORED[op], other, place
    before = p.do(f"arith.subi {first_of(p, other)}, {first_of(p, place)} : i64")
    if op in ("le", "gt"):
        before = p.do(f"arith.addi {before}, {p.constant('1 : i64')} : i64")
    least, most = p.constant("0 : i64"), p.constant(f"{lanes} : i64")
    before = p.do(f"arith.maxsi {before}, {least} : i64")
    before = p.do(f"arith.minsi {before}, {most} : i64")
    t, test = f"vector<{lanes}xi8>", "slt" if op in ("lt", "le") else "sge"
    count = p.do(f"arith.trunci {before} : i64 to i8")
    many = p.do(f"vector.broadcast {count} : i8 to {t}")
    numbers = p.constant(f"dense<{[*range(lanes)]}> : {t}")
    return p.do(f"arith.cmpi {test}, {numbers}, {many} : {t}")


def _reach(index: Node) -> int | None:
    """Returns an upper bound of the absolute value of an index and of its terms and factors.

    None if no bound is known, because the index depends on data.
    """
    if is_number(index):
        return abs(int(index.attrs["value"].array))
    if is_positions(index):
        return lanes_of(index.tensor)
    if "extent" in index.attrs:
        return int(index.attrs["extent"])
    if repeats(index):
        return _reach(index.args[0])
    if len(index.args) != 2 or not (multiplies(index) or signs(index)):
        return None
    left, right = map(_reach, index.args)
    if left is None or right is None:
        return None
    return left * right if multiplies(index) else left + right
