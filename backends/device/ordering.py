"""Sorts rows.

On a CPU, keys are mapped to integers of the same order, which NumPy sorts with SIMD.
Appending its index to each key makes all keys distinct, so that any sort of them is stable. If only
a few positions of the order are needed, they are selected without sorting.

Top-k is the first few elements of a stable sort, without sorting the rest. Libraries choose
arbitrarily among equal elements. Rows in which only some of the equal elements are selected get a
second top-k, which prefers smaller indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
SELECTED = 2  # up to this many positions, selecting is faster than sorting
THREAD_WORK = 1 << 15  # elements for which one more thread pays


def can_sort(key: Tensor, axis: int) -> bool:
    """True if a key and its index fit into one 64-bit word."""
    return key.numel() > 0 and key.element_size() <= 4 and key.shape[axis] < 1 << 31


def sorted_places(key: Tensor, axis: int, descending: bool) -> Tensor:
    """The indices of a stable sort along an axis (argsort)."""
    size = key.shape[axis]
    word, half = (np.int32, 16) if key.element_size() <= 2 and size <= 1 << 16 else (np.int64, 32)
    own = np.arange(size, dtype=word)

    def places(keys: Array) -> Array:
        words = keys.astype(word) << half | own
        words.sort(axis=-1)
        return words & ((1 << half) - 1)

    return _of_rows(places, key, axis, size, descending)


def can_select(key: Tensor, count: int) -> bool:
    """True if selecting so few positions is faster than sorting."""
    return 0 < count <= SELECTED and key.numel() > 0


def selected_places(key: Tensor, axis: int, numbers: Sequence[int], descending: bool) -> Tensor:
    """The indices at the positions `numbers` of a stable sort along an axis."""

    def places(keys: Array) -> Array:
        parts = np.partition(keys, list(numbers), axis=-1)
        return np.stack([_place(keys, parts[:, n, None], n) for n in numbers], -1)

    return _of_rows(places, key, axis, len(numbers), descending)


def _place(keys: Array, value: Array, number: int) -> Array:
    """Returns for each row the index of the element at position `number` of a stable sort.

    `value`: that element's key in each row. Of equal keys, the smaller index sorts first.
    """
    equal = keys == value
    places = equal.argmax(-1)
    tied = np.flatnonzero(np.count_nonzero(equal, axis=-1) > 1)
    if tied.size:
        before = np.count_nonzero(keys[tied] < value[tied], axis=-1)
        rank = equal[tied].cumsum(-1, dtype=np.int32)
        places[tied] = (rank == (number - before + 1)[:, None]).argmax(-1)
    return places


def _of_rows(
    places: Callable[[Array], Array], key: Tensor, axis: int, count: int, descending: bool
) -> Tensor:
    """Returns `places(keys)` of the rows along an axis, as a tensor of `count` indices per row.

    Runs in threads: NumPy releases the GIL while it sorts. Floats become integers of the same
    order; for `descending` the bits of all keys are inverted.
    """
    last = key.movedim(axis, -1)
    rows, infinity = _bits(last.reshape(-1, last.shape[-1]))
    made = np.empty((len(rows), count), np.int64)

    def fill(part: slice) -> None:
        keys = rows[part] if infinity is None else _in_order(rows[part], infinity)
        made[part] = places(~keys if descending else keys)

    parts = min(torch.get_num_threads(), len(rows), -(-rows.size // THREAD_WORK))
    if parts < 2:
        fill(slice(None))
    else:
        ends = [len(rows) * i // parts for i in range(parts + 1)]
        with ThreadPoolExecutor(parts) as threads:
            list(threads.map(fill, map(slice, ends, ends[1:])))
    return torch.from_numpy(made).view(*last.shape[:-1], count).movedim(-1, axis)


def _bits(rows: Tensor) -> tuple[Array, int | None]:
    """Returns rows as NumPy integers, and the bits of infinity for floats, else None.

    Floats become the integers with the same bits, bools bytes; integers are unchanged.
    """
    if rows.is_floating_point():
        signed = SIGNED[rows.element_size()]
        infinity = int(torch.tensor(torch.inf, dtype=rows.dtype).view(signed))
        return rows.contiguous().view(signed).numpy(), infinity
    return (rows.view(torch.uint8) if rows.dtype is torch.bool else rows).numpy(), None


def _in_order(bits: Array, infinity: int) -> Array:
    """Integers in the order of the floats with these bits: NaN largest, both zeros equal."""
    top = np.iinfo(bits.dtype).max
    size = bits & top
    keys = np.where(bits < 0, -size, size)
    keys[size > infinity] = top
    return keys


FEW = 4  # top-k is faster than a sort up to this fraction (1 / FEW) of a row


def is_choice(key: Tensor, axis: int, count: int) -> bool:
    """True if top-k of `count` elements is faster than a sort of the rows."""
    is_few = 0 < count <= key.shape[axis] // FEW and key.shape[axis] < 1 << 31
    return is_few and key.numel() > 0 and key.dtype is not torch.bool


def first_places(key: Tensor, axis: int, count: int, descending: bool) -> Tensor:
    """The indices of the first `count` elements of a stable sort along an axis, in order."""
    rows = key.movedim(axis, -1)
    shape = (*rows.shape[:-1], count)
    rows = rows.reshape(-1, rows.shape[-1])
    values, places = rows.topk(count + 1, dim=-1, largest=descending)
    places, last, after = places[:, :count], values[:, count - 1], values[:, count]
    is_cut = (last == after) | (last != last) & (after != after)
    cut = is_cut.nonzero()[:, 0]
    if len(cut):
        places[cut] = _by_place(rows[cut], last[cut, None], count, descending)
    places = places.sort(dim=-1).values
    order = rows.gather(1, places).sort(dim=-1, descending=descending, stable=True).indices
    return places.gather(1, order).reshape(shape).movedim(-1, axis)


def _by_place(rows: Tensor, last: Tensor, count: int, descending: bool) -> Tensor:
    """Returns the indices of the first `count` elements of each row, in no particular order.

    `last`: the last of these elements in sort order. Those that sort before it are selected, and of
    the elements equal to it the ones with the smallest indices.
    """
    nan, is_last_nan = rows != rows, last != last
    before = (
        (rows > last) | nan & ~is_last_nan if descending else (rows < last) | ~nan & is_last_nan
    )
    equal = (rows == last) | nan & is_last_nan
    size = rows.shape[-1]
    place = torch.arange(size, dtype=torch.int32, device=rows.device)
    worth = torch.where(before, size, torch.where(equal, size - 1 - place, -1))
    return worth.topk(count, dim=-1).indices
