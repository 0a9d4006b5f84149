"""Algorithms for a scan of an associative function, executable, with their costs.

They give equal results, but differ in the number of sequential steps and of combinations. They take
NumPy arrays and scan along the last axis; `combine` is as in `associative`.

    sequential   n steps, n combinations
    doubled      log n steps, n log n combinations           Hillis and Steele, 1986
    blelloch     2 log n steps, 2 n combinations             Blelloch, 1990; without an identity
    chunked      chunk + log(n / chunk) steps, 2 n combinations
    look_back    one pass over memory: a tile waits for earlier tiles, but not for all of them
                                                             Merrill and Garland, 2016
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from stack.ops.scan.associative import Combine, Values

OWN, ALL = 1, 2  # published by a tile: its own total, or the total of all tiles up to it


@dataclass
class Count:
    """Counts sequential steps, and combinations of single elements."""

    steps: int = 0
    combinations: int = 0

    def at_once(self, combine: Combine, earlier: Values, later: Values) -> Values:
        """Combines two batches of elements at once, and counts it.

        The pairs do not depend on each other, so it is one sequential step and one combination
        for each pair.
        """
        self.steps += 1
        self.combinations += earlier[0].shape[-1]
        return combine(np, earlier, later)


def sequential(combine: Combine, values: Values, count: Count) -> Values:
    """Combines elements one by one."""
    out = tuple(v.copy() for v in values)
    for t in range(1, out[0].shape[-1]):
        _set(out, slice(t, t + 1), count.at_once(combine, _cut(out, t - 1), _cut(values, t)))
    return out


def doubled(combine: Combine, values: Values, count: Count) -> Values:
    """Step k combines each element with the one 2^k before it."""
    out, distance = tuple(v.copy() for v in values), 1
    while distance < out[0].shape[-1]:
        later = tuple(v[..., distance:] for v in out)
        earlier = tuple(v[..., :-distance] for v in out)
        _set(out, slice(distance, None), count.at_once(combine, earlier, later))
        distance *= 2
    return out


def blelloch(combine: Combine, values: Values, count: Count) -> Values:
    """Combines pairs up a tree, so right ends hold subtree totals; then fills gaps downwards."""
    out, length = tuple(v.copy() for v in values), values[0].shape[-1]
    stride = 1
    while stride < length:
        right = slice(2 * stride - 1, None, 2 * stride)
        _join(combine, out, right, stride, count)
        stride *= 2
    while stride > 1:
        stride //= 2
        _join(combine, out, slice(3 * stride - 1, None, 2 * stride), stride, count)
    return out


def chunked(combine: Combine, values: Values, count: Count, chunk: int = 16) -> Values:
    """Scans chunks concurrently and then their totals, and combines these into later chunks."""
    length = values[0].shape[-1]
    starts = range(0, length, chunk)
    out = tuple(v.copy() for v in values)
    for t in range(1, min(chunk, length)):
        places = [s + t for s in starts if s + t < length]
        before = [p - 1 for p in places]
        _set(out, places, count.at_once(combine, _pick(out, before), _pick(out, places)))
    ends = [min(s + chunk, length) - 1 for s in starts]
    totals = doubled(combine, _pick(out, ends), count)
    later = list(range(chunk, length))
    if later:
        past = _pick(totals, [p // chunk - 1 for p in later])
        _set(out, later, count.at_once(combine, past, _pick(out, later)))
    return out


def look_back(
    combine: Combine, values: Values, count: Count, tile: int = 16, seed: int = 0
) -> Values:
    """Tiles publish their totals; a waiting tile looks at the tiles before it.

    Tiles run in random order, as programs on a GPU do. After a tile has scanned itself, each of its
    turns looks one tile further back. A total of that tile alone is added. A total of all tiles up
    to it ends the search. If the tile has published nothing, this one waits.
    """
    length = values[0].shape[-1]
    tiles = [slice(s, min(s + tile, length)) for s in range(0, length, tile)]
    status = [0] * len(tiles)
    own: list[Values] = [()] * len(tiles)
    upto: list[Values] = [()] * len(tiles)
    past: list[Values | None] = [None] * len(tiles)
    looked = list(range(len(tiles)))  # the last tile that each one looked at
    out = tuple(v.copy() for v in values)
    rng = np.random.default_rng(seed)
    waiting = list(range(len(tiles)))
    while waiting:
        now = waiting[int(rng.integers(min(len(waiting), 4)))]  # four run at a time
        count.steps += 1
        mine = tuple(v[..., tiles[now]] for v in out)
        if status[now] == 0:
            alone = Count()
            mine = sequential(combine, mine, alone)
            count.combinations += alone.combinations
            _set(out, tiles[now], mine)
            own[now] = _cut(mine, mine[0].shape[-1] - 1)
            status[now] = OWN
            if now == 0:
                upto[now], status[now] = own[now], ALL
                waiting.remove(now)
            continue
        before = looked[now] - 1
        if status[before] == 0:
            continue
        found = upto[before] if status[before] == ALL else own[before]
        held = past[now]
        past[now] = found if held is None else combine(np, found, held)
        count.combinations += held is not None
        looked[now] = before
        if status[before] == ALL:
            total = past[now]
            assert total is not None
            upto[now], status[now] = combine(np, total, own[now]), ALL
            _set(out, tiles[now], combine(np, total, mine))
            count.combinations += 1 + mine[0].shape[-1]
            waiting.remove(now)
    return out


FORMS: dict[str, Callable[[Combine, Values, Count], Values]] = {
    "sequential": sequential,
    "doubled": doubled,
    "blelloch": blelloch,
    "chunked": partial(chunked, chunk=16),
    "look_back": look_back,
}


def _join(combine: Combine, out: Values, right: slice, stride: int, count: Count) -> None:
    """Replaces each element at the indices `right` by its combination with the one `stride` before
    it, in place, and counts one step."""
    places = range(*right.indices(out[0].shape[-1]))
    if len(places):
        before = [p - stride for p in places]
        made = count.at_once(combine, _pick(out, before), _pick(out, list(places)))
        _set(out, list(places), made)


def _cut(values: Values, place: int) -> Values:
    return tuple(v[..., place : place + 1] for v in values)


def _pick(values: Values, places: list[int]) -> Values:
    return tuple(v[..., places] for v in values)


def _set(values: Values, places: slice | list[int], made: Values) -> None:
    for v, m in zip(values, made, strict=True):
        v[..., places] = m
