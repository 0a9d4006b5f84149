"""What sizes of attention have to fit, besides its axis rule."""

from __future__ import annotations

from stack.errors import RuleError
from stack.ir.dim import Dim, equal, less_equal, mod


def check(h: Dim, g: Dim, s: Dim, t: Dim, causal: bool, window: int) -> None:
    """Raise RuleError where heads are not shared evenly, or a query would see no key."""
    if equal(mod(h, g), 0) is False:
        raise RuleError(f"{h} heads of queries are not shared evenly by {g} heads of keys")
    if window < 0:
        raise RuleError(f"a window holds a number of keys, not {window}")
    if t == 0 or ((causal or window) and less_equal(s, t) is False):
        raise RuleError(f"a query of {s} sees none of {t} keys")
