"""Orders of rows on a CPU: keys become integers of the same order, which NumPy sorts by vectors.

With its place behind it each key is another number: whatever sorts those is stable. A few places of
an order are selected: which key stands there, and which of its equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SELECTED = 2  # places that are selected in less than the time of a sort
ROW_WORK = 1 << 15  # elements that pay for another thread


def integer_keys(key: Tensor, descending: bool) -> Tensor:
    """Signed integers whose order is the one that is wanted: nan above all, zeros the same."""
    if key.dtype in (torch.bool, torch.uint8):
        made = key.to(torch.int16)
    elif key.is_floating_point():
        bits = (key + 0.0).view(SIGNED[key.element_size()])  # -0.0 and 0.0 are equal
        top = torch.iinfo(bits.dtype).max
        # of two negative floats, the one with larger bits is less
        made = torch.where(key != key, top, bits ^ ((bits >> 63) & top))
    else:
        made = key
    return ~made if descending else made


def can_sort(key: Tensor, axis: int) -> bool:
    """Whether a key and its place fit into one word."""
    return key.numel() > 0 and key.element_size() <= 4 and key.shape[axis] < 1 << 31


def sorted_places(key: Tensor, axis: int, descending: bool) -> Tensor:
    """Where the elements of a stable sort along an axis are."""
    keys = integer_keys(key.movedim(axis, -1), descending).contiguous()
    size = keys.shape[-1]
    is_short = keys.element_size() <= 2 and size <= 1 << 16
    word, half = (torch.int32, 16) if is_short else (torch.int64, 32)
    words = keys.to(word) << half | torch.arange(size, dtype=word)
    _on_rows(lambda rows: rows.sort(axis=-1), words.view(-1, size).numpy())
    return (words & ((1 << half) - 1)).long().movedim(-1, axis)


def can_select(key: Tensor, count: int) -> bool:
    """Whether so few places are selected with less work than by a sort."""
    return 0 < count <= SELECTED and key.numel() > 0


def selected_places(key: Tensor, axis: int, numbers: Sequence[int], descending: bool) -> Tensor:
    """Where some elements of a stable sort along an axis are, by number."""
    keys = integer_keys(key.movedim(axis, -1), descending).contiguous()
    rows = keys.view(-1, keys.shape[-1])
    parts = rows.clone()
    _on_rows(lambda some: some.partition(list(numbers), axis=-1), parts.numpy())
    found = [_place(rows, parts[:, number, None], number) for number in numbers]
    return torch.stack(found, -1).view(*keys.shape[:-1], len(numbers)).movedim(-1, axis)


def _place(rows: Tensor, value: Tensor, number: int) -> Tensor:
    """Where in each row the value stands that is `number` in its order, of equal ones by place."""
    equal = rows == value
    places = torch.from_numpy(equal.numpy().argmax(-1))
    tied = (equal.sum(-1, dtype=torch.int32) > 1).nonzero()[:, 0]
    if len(tied):
        before = (rows[tied] < value[tied]).sum(-1, dtype=torch.int32)
        rank = equal[tied].cumsum(-1, dtype=torch.int32)
        places[tied] = torch.searchsorted(rank, (number - before + 1)[:, None].int())[:, 0]
    return places


def _on_rows(do: Callable[[Array], None], rows: Array) -> None:
    """Do something in place to rows, which threads share: NumPy lets go of Python meanwhile."""
    count = min(torch.get_num_threads(), len(rows), -(-rows.size // ROW_WORK))
    if count < 2:
        do(rows)
        return
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(do, np.array_split(rows, count)))
