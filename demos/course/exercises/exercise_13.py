"""Exercise 13: the roofline."""

from stack.demos.course.answers import Gap


def ridge(peak, rate):
    """The intensity at which computing and moving take the same time.

    `peak` is in operations, `rate` in bytes in a second.
    """
    raise Gap("operations for a byte")


def reachable(flops, moved, peak, rate):
    """The rate, in operations in a second, that a kernel can reach: `flops` operations, `moved`
    bytes.
    """
    raise Gap("the smaller of two rates")


def least_rows(k, n, size, peak, rate, most=1 << 20):
    """The least m for which a matmul of m x k by k x n is bound by compute; None if there is none
    up to `most`. An element has `size` bytes. Both operands are read once, the result is written
    once.

    At the ridge point itself a kernel counts as bound by compute.
    """
    raise Gap("2 m k n operations; size (m k + k n + m n) bytes")
