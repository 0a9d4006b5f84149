"""Strided loads: loads whole vectors and shuffles their lanes into one.

A gather takes as long as a load per lane. If a vector covers several lanes, fewer loads are needed.
Nothing past the last lane is read, because the last vector ends there. Lanes with a negative stride
are loaded in memory order, and reversed.
"""

from __future__ import annotations

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_number, is_positions, multiplies, repeats, signs
from stack.ir.types import I64

from .elementwise import cast
from .statements import Statements, lanes_of

LEAST_LANES = 2  # minimum number of lanes per vector


def step_of(load: Node) -> int | None:
    """The stride, in elements, between lanes of a load; None if it is not constant."""
    index, _, _ = access_parts(load)
    found = [step_of_index(i) for i in index]
    total, apart = 0, 1
    for own, size in zip(reversed(found), reversed(load.args[0].shape), strict=True):
        if own is None or not isinstance(size, int):
            return None
        total += own * apart
        apart *= size
    return total


def step_of_index(index: Node) -> int | None:
    """The increment of an index from lane to lane; None if it is not constant."""
    if not index.tensor.rank or repeats(index):
        return 0
    if is_positions(index):
        return 1
    taken, scaled = signs(index), multiplies(index)
    if index.dtype is not I64 or (taken is None and not scaled):
        return None  # checked before operands, which data may share deeply
    parts = [step_of_index(a) for a in index.args]
    if None in parts:
        return None
    known = [part for part in parts if part is not None]
    factors = [a for a in index.args if is_number(a)]
    if scaled and factors:
        return sum(known) * int(factors[0].attrs["value"].array)
    return None if taken is None else sum(s * k for s, k in zip(taken, known, strict=True))


def first_of(p: Statements, index: Node) -> str:
    """The index of the first lane, as i64; for indices that `step_of` supports."""
    if not index.tensor.rank:
        return cast(p, p.value(index, 0), index.dtype, I64, 0)
    if is_positions(index):
        return p.constant("0 : i64")
    if repeats(index):
        return first_of(p, index.args[0])
    left, right = (first_of(p, a) for a in index.args)
    if multiplies(index):
        return p.do(f"arith.muli {left}, {right} : i64")
    is_sum = signs(index) == (1, 1)
    return p.do(f"arith.{'addi' if is_sum else 'subi'} {left}, {right} : i64")


def covers(load: Node, vector_bytes: int) -> bool:
    """True if a vector of `vector_bytes` contains several lanes of a load."""
    step = step_of(load)
    return step is not None and 1 <= abs(step) <= vector_bytes // load.dtype.bytes // LEAST_LANES


def load_steps(p: Statements, load: Node, address: str, type_: str, mask: str = "") -> str:
    """Loads the lanes of a load that `covers` accepts, from the address of the first, as `type_`.

    Lanes are shuffled as integers, because not every CPU can shuffle every type. Only lanes in the
    mask are read; the others are undefined.
    """
    step, lanes = step_of(load) or 1, lanes_of(load.tensor)
    kind, most = f"i{8 * load.dtype.bytes}", p.cpu.vector_bytes // load.dtype.bytes
    made, width = "", 0
    for begin in range(0, lanes, most):
        count = min(most, lanes - begin)
        picks = [*range(begin, begin + count)][:: 1 if step > 0 else -1]  # in memory order
        own = _lanes_of_mask(p, mask, lanes, picks) if mask else ""
        first = _past(p, address, picks[0] * step, kind)
        part = _part(p, load, first, abs(step), count, own)
        if step < 0:
            t = f"vector<{count}x{kind}>"
            part = p.do(f"vector.shuffle {part}, {part} {[*range(count)][::-1]} : {t}, {t}")
        made = _joined(p, made, width, part, count, kind)
        width += count
    bits = f"vector<{lanes}x{kind}>"
    return made if type_ == bits else p.do(f"arith.bitcast {made} : {bits} to {type_}")


def _lanes_of_mask(p: Statements, mask: str, lanes: int, picks: list[int]) -> str:
    """Returns a mask with the lanes `picks` of another one; false for lanes past its end."""
    none = p.constant(f"dense<false> : vector<{lanes}xi1>")
    t = f"vector<{lanes}xi1>"
    return p.do(f"vector.shuffle {mask}, {none} {picks} : {t}, {t}")


def _part(p: Statements, load: Node, address: str, step: int, count: int, mask: str = "") -> str:
    """Loads `count` lanes, `step` elements between them, from an address on, as one vector.

    Reads vectors of `count` contiguous elements and shuffles their lanes. The last vector ends with
    the last lane, so that nothing after it is read.
    """
    kind = f"i{8 * load.dtype.bytes}"
    t, align = f"vector<{count}x{kind}>", f"{{alignment = {load.dtype.bytes} : i64}}"
    last = (count - 1) * (step - 1)
    begins = [min(lane * step // count * count, last) for lane in range(count)]
    made, where = "", [0] * count
    for begin in sorted(set(begins)):
        place = _past(p, address, begin, kind)
        own = {lane: lane * step - begin for lane in range(count) if begins[lane] == begin}
        if mask:
            read = {at: lane for lane, at in own.items()}
            test = _lanes_of_mask(p, mask, count, [read.get(i, count) for i in range(count)])
            zeros, bits = p.constant(f"dense<0> : {t}"), f"vector<{count}xi1>"
            masked = f"{place}, {test}, {zeros} {{alignment = {load.dtype.bytes} : i32}}"
            found = p.do(f"llvm.intr.masked.load {masked} : (!llvm.ptr, {bits}, {t}) -> {t}")
        else:
            found = p.do(f"llvm.load {place} {align} : !llvm.ptr -> {t}")
        if made:
            picks = [count + own[lane] if lane in own else where[lane] for lane in range(count)]
            made, where = (
                p.do(f"vector.shuffle {made}, {found} {picks} : {t}, {t}"),
                [*range(count)],
            )
        else:
            made, where = found, [own.get(lane, 0) for lane in range(count)]
    if where == [*range(count)]:
        return made
    return p.do(f"vector.shuffle {made}, {made} {where} : {t}, {t}")


def _joined(p: Statements, left: str, width: int, right: str, count: int, kind: str) -> str:
    """Concatenates two vectors."""
    if not width:
        return right
    types = f"vector<{width}x{kind}>, vector<{count}x{kind}>"
    return p.do(f"vector.shuffle {left}, {right} {[*range(width + count)]} : {types}")


def _past(p: Statements, address: str, count: int, kind: str) -> str:
    """The address of an element `count` further on."""
    if not count:
        return address
    return p.do(f"llvm.getelementptr {address}[{count}] : (!llvm.ptr) -> !llvm.ptr, {kind}")
