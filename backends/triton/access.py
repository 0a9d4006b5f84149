"""Loads and stores by pointer arithmetic, or through a tensor descriptor (Hopper's TMA)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.types import TensorType

MAX_BOX = 256  # largest extent of a dimension of a descriptor's block
MOST = 2**31 - 1  # rows or columns of a descriptor's matrix


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor: memory as a matrix, or as a batch of them, copied in blocks.

    `shape` and `block` are in elements.
    """

    memory: str
    shape: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """The address of a tile: a pointer with a mask, or coordinates in a descriptor."""

    pointer: str = ""
    mask: str = ""
    other: str = "0"
    descriptor: Descriptor | None = None
    at: str = ""


def access_of(
    name: str,
    memory: TensorType,
    tile: TensorType,
    index: Sequence[str],
    *,
    blocks: bool,
    passes: Sequence[bool],
    mask: str,
    other: str,
    described: bool,
    is_64: bool,
) -> Access:
    """Returns how to address the tile of a load or store.

    Args:
        index: expressions, one for each axis of the memory.
        blocks: True if they are the scalar starts of a block along the last axes.
        passes: for each axis of the memory, True if the block may extend past its end.
        described: True if descriptors may be used.
        is_64: True if offsets need 64 bits.
    """
    shape = tuple(int(s) for s in memory.shape)  # pyright: ignore[reportArgumentType]
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    extents = tuple(int(s) for s in tile.shape)  # pyright: ignore[reportArgumentType]
    if not blocks or not extents:
        terms = [_scaled(i, s) for i, s in zip(index, strides, strict=True) if i != "0"]
        return Access(" + ".join([name, *terms]), mask, other or "0")
    if described and not mask:
        found = _described(name, memory, shape, extents, index, passes, is_64)
        if found is not None:
            return found
    lead = len(shape) - len(extents)
    wide = ".to(tl.int64)" if is_64 else ""
    scalars: list[str] = []
    tiles: list[str] = []
    tests: list[str] = []
    for axis, (start, stride) in enumerate(zip(index, strides, strict=True)):
        extent = extents[axis - lead] if axis >= lead else 1
        if extent == 1:
            if start != "0":
                scalars.append(_scaled(start, stride))
            continue
        place = f"tl.arange(0, {extent}){wide}"
        if start != "0":
            place = f"({start} + {place})"
        if len(extents) > 1:
            marks = ", ".join(":" if a == axis - lead else "None" for a in range(len(extents)))
            place = f"{place}[{marks}]"
        tiles.append(_scaled(place, stride))
        if passes[axis]:
            tests.append(f"({place} < {shape[axis]})")
    pointer = " + ".join([name, *scalars, *tiles])
    return Access(pointer, " & ".join([*([mask] if mask else []), *tests]), other or "0")


def _scaled(text: str, stride: int) -> str:
    if stride == 1:
        return text
    plain = text.isidentifier() or text.startswith(("tl.", "(")) or text.isdigit()
    return f"{text if plain else f'({text})'} * {stride}"


def _described(
    name: str,
    memory: TensorType,
    shape: tuple[int, ...],
    extents: tuple[int, ...],
    index: Sequence[str],
    passes: Sequence[bool],
    is_64: bool,
) -> Access | None:
    """Returns how to address a tile through a tensor descriptor; None if that is impossible.

    The memory is a matrix: all dims up to the tile's first are rows, the rest columns. If the tile
    may extend past the last row, and there are dims before the rows, then the rows at each index of
    those dims are a matrix of their own (a third dimension of the descriptor).
    """
    wide = [i for i, e in enumerate(extents) if e > 1]
    if len(wide) != 2 or max(extents) > MAX_BOX:
        return None
    lead = len(shape) - len(extents)
    row, lane = (i + lead for i in wide)
    if lane != len(shape) - 1:
        return None
    ends = [row + 1, len(shape)]
    block = (extents[row - lead], extents[lane - lead])
    if passes[row] and math.prod(shape[:row]) != 1:
        ends, block = [row, *ends], (1, *block)
    starts = [0, *ends[:-1]]
    matrix = tuple(math.prod(shape[a:b]) for a, b in zip(starts, ends, strict=True))
    bytes_ = memory.dtype.bytes
    if (
        max(matrix) > MOST
        or memory.dtype.kind == "b"
        or matrix[-1] * bytes_ % 16
        or block[-1] * bytes_ < 16
    ):
        return None
    # past the end of a dim's columns must also be past the end of the matrix, to be masked
    if passes[lane] and math.prod(shape[row + 1 : lane]) != 1:
        return None
    places = [_linear(index[a:b], shape[a:b]) for a, b in zip(starts, ends, strict=True)]
    at = ", ".join(_narrow(p) if is_64 else p for p in places)
    return Access(descriptor=Descriptor(name, matrix, block), at=at)


def _narrow(place: str) -> str:
    """Returns the text of a matrix coordinate cast to 32 bits; constants are unchanged.

    Descriptors require 32 bits, even if offsets have 64.
    """
    return place if place.isdigit() else f"({place}).to(tl.int32)"


def _linear(index: Sequence[str], shape: Sequence[int]) -> str:
    terms: list[str] = []
    for axis, text in enumerate(index):
        if text != "0":
            terms.append(_scaled(text, math.prod(shape[axis + 1 :])))
    return " + ".join(terms) or "0"
