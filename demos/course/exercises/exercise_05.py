"""Exercise 5: states that can be corrected and merged."""

import numpy as np  # noqa: F401

from stack.demos.course.answers import Gap


def merge(a, b):
    """The state (m, l, o) of a row from the states of its two parts.

    m: largest score; l: sum of exp(s - m); o: sum of exp(s - m) v. A part without scores has
    m = -inf, l = 0, o = 0, and changes nothing: no nan may come out of it.
    """
    raise Gap("correct both to the larger maximum; exp(-inf - -inf) is nan")


def running_variance(values):
    """Sum of (x - mean)^2 in one pass over the values: the mean is corrected as it moves.

    `values` may be an iterator, which can be read once and has no length.

    State: count, mean, sum of squares. Welford, 1962. Do not subtract two large sums.
    """
    raise Gap("with delta = x - mean: mean += delta / count, squares += delta * (x - new mean)")
