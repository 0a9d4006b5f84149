"""Exercise 14: a mask of one's own."""

import numpy as np  # noqa: F401

import stack.mini as mini  # noqa: F401
from stack.demos.course.answers import Gap


def window(row, key, width, sinks):
    """True where query `row` sees `key`: the last `width` keys up to its own position, and the
    first `sinks` keys of the sequence; never a later key.

    `row` and `key` are arrays of integers that broadcast.
    """
    raise Gap("comparisons, joined by & and |")


def attention(q, k, v, width):
    """Attention by `mini`, in which a query sees its own key and the `width` - 1 keys before it.

    q, k, v are tracers [n, d]. Scale the scores by 1 / sqrt(d). The compiler must make one kernel.
    """
    raise Gap("two mini.where, one for each side of the window, before the softmax")


def blocks(mask, size):
    """(empty, full, mixed): how many blocks of size x size hide all, hide none, and hide some.

    `size` divides both sides of the mask; True is seen.
    """
    raise Gap("reshape to [rows, size, columns, size]")
