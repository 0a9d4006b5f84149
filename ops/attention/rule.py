"""What sizes of attention have to fit, besides its axis rule."""

from __future__ import annotations

from stack.errors import RuleError


def check(h: int, g: int, s: int, t: int, causal: bool, window: int) -> None:
    """Raise RuleError where heads are not shared evenly, or a query would see no key."""
    if h % g:
        raise RuleError(f"{h} heads of queries are not shared evenly by {g} heads of keys")
    if window < 0:
        raise RuleError(f"a window holds a number of keys, not {window}")
    if t == 0 or (s > t and (causal or window)):
        raise RuleError(f"a query of {s} sees none of {t} keys")
