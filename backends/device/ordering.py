"""Top-k: the first few elements of a stable sort, without sorting the rest.

Libraries choose arbitrarily among equal elements. Rows in which only some of the equal elements are
selected get a second top-k, which prefers smaller indices.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
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
