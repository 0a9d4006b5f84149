"""Copies of blocks in memory with another order of axes, which packs panels."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from stack.ir.types import I32, DType

from .access import Accesses
from .elementwise import cast, shaped
from .statements import memory_type
from .views import View, at, loop, step

LANES, COLUMNS = 16, 4  # a transpose in registers takes 16 rows of 4 words
WORD = 4  # bytes of neighbours that one instruction multiplies


def copy(p: Accesses, source: View, target: View) -> None:
    """Copy a block, in loops over its axes."""
    if pairs := _as_words(source, target):
        return copy(p, *pairs)
    axes = _coalesced(source, target)
    lanes = axes[-1]
    close = [axis for axis in axes[:-1] if axis[1] == 1 and axis[0] >= COLUMNS]
    if lanes[1] == lanes[2] == 1:
        with _nest(p, source, target, axes[:-1]) as (a, b):  # row by row
            _write(p, target, source.read(p, a, lanes[0]), b, lanes[0])
    elif source.to.bytes * lanes[0] == WORD and axes[-2:-1] and _is_line(axes[-2], lanes):
        _zipped(p, source, target, axes)
    elif _takes_turns(p, source, axes):
        _interleaved(p, source, target, axes)
    elif close and lanes[2] == 1 and (read := _in_registers(source, lanes[0])):
        outer = [a for a in axes[:-1] if a is not close[-1]]
        _squares(p, source, read, target, outer, close[-1], lanes)
    else:
        with _nest(p, source, target, axes) as (a, b):
            _write(p, target, source.read(p, a, 0), b, 0)


Axis = tuple[int, int, int]  # size, stride in the source, stride in the target


def _coalesced(source: View, target: View) -> list[Axis]:
    """The axes of a copy, with adjacent axes merged if they are contiguous on both sides."""
    made: list[Axis] = []
    for size, a, b in zip(source.shape, source.strides, target.strides):
        if size == 1:
            continue
        if made and made[-1][1:] == (size * a, size * b):
            size *= made.pop()[0]
        made.append((size, a, b))
    return made or [(1, 1, 1)]


def _write(p: Accesses, target: View, value: str, address: str, lanes: int) -> None:
    align = f"{{alignment = {target.dtype.bytes} : i64}}"
    value = p.to_memory(value, target.dtype, lanes)
    p.put(f"llvm.store {value}, {address} {align} : {memory_type(target.dtype, lanes)}, !llvm.ptr")


@contextmanager
def _nest(
    p: Accesses, source: View, target: View, axes: Sequence[Axis]
) -> Generator[tuple[str, str]]:
    """Prints nested loops over the axes of a copy, around the statements that are printed inside.

    Yields the current addresses in source and target.
    """
    a, b = source.base, target.base
    with ExitStack() as loops:
        for size, first, second in axes:
            k = loops.enter_context(loop(p, size))
            a, b = step(p, a, k, first, source.dtype), step(p, b, k, second, target.dtype)
        yield a, b


def _begin(p: Accesses, k: str, width: int, size: int) -> str:
    """Returns the first index of step `k`, of `width` elements, along an axis of `size`.

    If the width does not divide the size, the last step starts earlier, to end with the axis.
    """
    begin = p.do(f"arith.muli {k}, {p.constant(f'{width} : i64')} : i64")
    if size % width:
        begin = p.do(f"arith.minsi {begin}, {p.constant(f'{size - width} : i64')} : i64")
    return begin


def _is_line(axis: Axis, inner: Axis) -> bool:
    """True if a copy interleaves the rows that `inner` counts, each contiguous along `axis`.

    Only an axis of even size is accepted.
    """
    return axis[1:] == (1, inner[0]) and inner[2] == 1 and axis[0] % 2 == 0


def _in_registers(source: View, lanes: int) -> View | None:
    """Returns the source as a transpose in registers reads it, in rows of `lanes` elements.

    It reads words, before or after conversion, or short elements that are packed in words. None if
    the conversion does not allow this, or if rows do not fill registers.
    """
    is_same = source.dtype == source.to and source.to.kind != "b"
    is_read_first = source.dtype.bytes == WORD > source.to.bytes
    read = replace(source, to=source.dtype) if is_read_first else source
    fills = read.to.bytes == WORD or (is_same and read.to.bytes < WORD)
    return read if fills and not source.raised and lanes * read.to.bytes >= LANES * WORD else None


def _as_words(source: View, target: View) -> tuple[View, View] | None:
    """Returns both views with each run of short elements as one word, for a faster copy.

    None unless the last axis is one word, contiguous in both, and copied without conversion.
    """
    views, count = (source, target), WORD // source.to.bytes
    if count == 1 or source.dtype != source.to or target.dtype != source.to or source.raised:
        return None
    if any(v.shape[-1] != count or v.strides[-1] != 1 for v in views):
        return None
    if any(t % count for v in views for t in v.strides[:-1]):
        return None
    first, second = (
        View(v.base, I32, I32, v.shape[:-1], tuple(t // count for t in v.strides[:-1]))
        for v in views
    )
    return first, second


def _zipped(p: Accesses, source: View, target: View, axes: Sequence[Axis]) -> None:
    """Prints a copy that interleaves several contiguous source rows to one target row.

    The last axis counts the rows, the axis before it the lanes of a row.
    """
    *outer, (lanes, _, _), (count, apart, _) = axes
    with _nest(p, source, target, outer) as (a, b):
        rows = [source.read(p, at(p, a, i * apart, source.dtype), lanes) for i in range(count)]
        _write(p, target, zipped(p, rows, source.to, lanes), b, count * lanes)


def _takes_turns(p: Accesses, source: View, axes: Sequence[Axis]) -> bool:
    """True if the target interleaves the source rows: element 0 of all rows, then element 1, ...

    The last axis counts the rows. There must be more than one, but fewer than fill a vector.
    """
    (count, _, last), others = axes[-1], axes[:-1]
    is_short = 1 < count * source.to.bytes < p.cpu.vector_bytes
    return is_short and last == 1 and any(a[1:] == (1, count) for a in others[-1:])


def _interleaved(p: Accesses, source: View, target: View, axes: Sequence[Axis]) -> None:
    """Copies rows to an interleaved target: reads one vector of each row, writes as many."""
    *outer, (size, _, _), (count, apart, _) = axes
    most = p.cpu.vector_bytes // source.to.bytes
    width = min(most, 1 << (size.bit_length() - 1))
    t = shaped(source.to, width)
    with _nest(p, source, target, outer) as (a, b), loop(p, -(-size // width)) as k:
        begin = _begin(p, k, width, size)
        left = step(p, a, begin, 1, source.dtype)
        right = step(p, b, begin, count, target.dtype)
        lines = [source.read(p, at(p, left, i * apart, source.dtype), width) for i in range(count)]
        for i, made in enumerate(_in_turns(p, lines, t, width)):
            _write(p, target, made, at(p, right, i * width, target.dtype), width)


def _in_turns(p: Accesses, lines: list[str], t: str, width: int) -> list[str]:
    """Interleaves the lanes of all vectors `lines`; returns as many vectors as it gets.

    Interleaves each half of the vectors first, then the two halves.
    """
    count = len(lines)
    if count == 1:
        return lines
    half = 1 << ((count - 1).bit_length() - 1)
    left, right = (_in_turns(p, part, t, width) for part in (lines[:half], lines[half:]))
    picks: list[tuple[int, int]] = []  # vector (of both halves) and lane
    for turn in range(width):
        picks += [divmod(turn * half + i, width) for i in range(half)]
        rest = count - half
        others = [divmod(turn * rest + i, width) for i in range(rest)]
        picks += [(half + vector, lane) for vector, lane in others]
    parts = [*left, *right]
    return [_picked(p, parts, picks[i * width :][:width], t) for i in range(count)]


def _picked(p: Accesses, parts: list[str], picks: list[tuple[int, int]], t: str) -> str:
    """Returns a vector of lanes picked from several vectors, by one shuffle per vector.

    `picks`: for each lane of the result the vector, an index in `parts`, and its lane there.
    """
    width = len(picks)
    first, *others = sorted({vector for vector, _ in picks})
    made, places = parts[first], [lane for _, lane in picks]
    for other in others or [first]:
        lanes = [
            width + lane if vector == other else place
            for (vector, lane), place in zip(picks, places, strict=True)
        ]
        made = p.do(f"vector.shuffle {made}, {parts[other]} {lanes} : {t}, {t}")
        places = [*range(width)]
    return made


def zipped(p: Accesses, rows: list[str], dtype: DType, lanes: int) -> str:
    """Interleaves a power of two of vectors, with `lanes` lanes each, to one vector."""
    picks = [place for i in range(lanes) for place in (i, lanes + i)]
    t, bits, count = shaped(dtype, lanes), dtype.bits, len(rows)
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [p.do(f"vector.shuffle {x}, {y} {picks} : {t}, {t}") for x, y in pairs]
        # an interleaved pair is one element of the next round, or of the result
        both = f"vector<{2 * lanes}x{t.rpartition('x')[2]}"
        bits *= 2
        t = f"vector<{lanes}xi{bits}>" if len(rows) > 1 else shaped(dtype, count * lanes)
        if t != both:
            rows = [p.do(f"vector.bitcast {x} : {both} to {t}") for x in rows]
    return rows[0]


def _squares(
    p: Accesses,
    source: View,
    read: View,
    target: View,
    outer: Sequence[Axis],
    column: Axis,
    lane: Axis,
) -> None:
    """Transposes in registers: the source is contiguous along `column`, the target along `lane`.

    Rows of short elements are first packed to rows of words.
    """
    many = WORD // read.to.bytes
    width, word = many * LANES, read.to if many == 1 else I32

    def row(left: str, first: int) -> str:
        """Loads COLUMNS elements of each of `many` rows from `first` on, packed in words."""
        parts = [
            read.read(p, at(p, left, (first + j) * lane[1], read.dtype), COLUMNS)
            for j in range(many)
        ]
        made = zipped(p, parts, read.to, COLUMNS)
        return made if many == 1 else _bits(p, made, read.to, many * COLUMNS, word, COLUMNS)

    with _nest(p, source, target, outer) as (a, b), loop(p, -(-lane[0] // width)) as k:
        begin = _begin(p, k, width, lane[0])
        a, b = step(p, a, begin, lane[1], source.dtype), step(p, b, begin, 1, target.dtype)
        with loop(p, -(-column[0] // COLUMNS)) as c:
            begin = _begin(p, c, COLUMNS, column[0])
            left = step(p, a, begin, 1, source.dtype)
            right = step(p, b, begin, column[2], target.dtype)
            quarters = [[row(left, many * (4 * q + i)) for q in range(4)] for i in range(4)]
            for i, made in enumerate(_transpose(p, quarters, word)):
                if many > 1:
                    made = _bits(p, made, word, LANES, read.to, width)
                made = cast(p, made, read.to, source.to, width)
                _write(p, target, made, at(p, right, i * column[2], target.dtype), width)


def _bits(p: Accesses, x: str, source: DType, many: int, target: DType, lanes: int) -> str:
    """Bitcasts a vector of `many` source elements to `lanes` elements of another type."""
    return p.do(f"vector.bitcast {x} : {shaped(source, many)} to {shaped(target, lanes)}")


def _transpose(p: Accesses, quarters: list[list[str]], dtype: DType) -> list[str]:
    """Transposes 16 rows of 4 to 4 rows of 16; `quarters[i][q]` is row 4 q + i."""

    def mix(x: str, y: str, picks: Sequence[int], size: int) -> str:
        t = shaped(dtype, size)
        return p.do(f"vector.shuffle {x}, {y} {list(picks)} : {t}, {t}")

    z: list[str] = []
    for parts in quarters:
        halves = [mix(parts[0], parts[1], range(8), 4), mix(parts[2], parts[3], range(8), 4)]
        z.append(mix(halves[0], halves[1], range(16), 8))
    starts = range(0, LANES, 4)
    low = [i for s in starts for i in (s, 16 + s, s + 1, 17 + s)]
    high = [i for s in starts for i in (s + 2, 18 + s, s + 3, 19 + s)]
    first = [i for s in starts for i in (s, s + 1, 16 + s, 17 + s)]
    second = [i for s in starts for i in (s + 2, s + 3, 18 + s, 19 + s)]
    made: list[str] = []
    for picks in (low, high):
        upper, lower = mix(z[0], z[1], picks, 16), mix(z[2], z[3], picks, 16)
        made += [mix(upper, lower, first, 16), mix(upper, lower, second, 16)]
    return made
