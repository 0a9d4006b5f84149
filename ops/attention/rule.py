"""Checks of sizes and values of attention that its axis rule does not express."""

from __future__ import annotations

from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.dim import Dim, less_equal


def check(s: Dim, t: Dim, causal: bool, window: int) -> None:
    """Raise RuleError if there is no query, a query sees no key, or `window` is negative."""
    if s == 0:
        raise RuleError("'q' has no queries: attention needs at least one")
    if window < 0:
        raise RuleError(f"'window' must be a number of keys, not {window}")
    if (causal or window) and less_equal(s, t) is False:
        raise RuleError(f"'q' and 'k': a query of {s} sees none of {t} keys")


def check_pages(
    q: Any, pool_k: Any, pool_v: Any, table: Any, lengths: Any, **attributes: Any
) -> None:
    """Raise RuleError if a block table points outside of its pool or has too few pages.

    Takes NumPy arrays, with the operands of operator `attention.paged`.
    """
    pages, room = pool_k.shape[:2]
    most = room * table.shape[-1]
    wrong = lengths[(lengths < 1) | (lengths > most)]
    if wrong.size:
        raise RuleError(
            f"'lengths' has {wrong[0]}: a sequence has 1 to {most} keys, as many as fit its pages"
        )
    used = table[np.arange(table.shape[-1]) * room < lengths[..., None]]
    wrong = used[(used < 0) | (used >= pages)]
    if wrong.size:
        raise RuleError(f"'table' names page {wrong[0]}: its pool has pages 0 to {pages - 1}")
    if attributes["causal"] and (lengths < q.shape[-2]).any():
        raise RuleError(
            f"'lengths' has {lengths.min()}: 'q' has {q.shape[-2]} queries, the last of the keys"
        )


def check_tree(q: Any, k: Any, v: Any, ends: Any, **attributes: Any) -> None:
    """Raise RuleError if a subtree ends before its own key, or if subtrees overlap partly."""
    keys = np.arange(ends.shape[-1])
    wrong = ends[(ends <= keys) | (ends > ends.shape[-1])]
    if wrong.size:
        raise RuleError(
            f"'ends' has {wrong[0]}: a subtree must end after its key and by {ends.shape[-1]}"
        )
    inside = (keys[:, None] < keys) & (keys < ends[..., :, None])
    crossing = inside & (ends[..., None, :] > ends[..., :, None])
    if crossing.any():
        place = np.argwhere(crossing)[0]
        raise RuleError(f"'ends': the subtrees of keys {place[-2]} and {place[-1]} cross")
