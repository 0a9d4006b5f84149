"""Exercise 8: four bits in groups."""

import numpy as np  # noqa: F401

from stack.demos.course.answers import Gap


def quantize(weight, group):
    """Codes [n, k] of int8 from -8 to 7, and scales [n, k / group], of weights [n, k].

    `group` neighbours along k share a scale, so large that the largest size becomes 7. A group of
    zeros has scale 1.
    """
    raise Gap("reshape to [n, k / group, group]; round to the nearest")


def pack(codes, group):
    """uint8 [n, k / 2]: codes + 8, two in a byte.

    The low half of a byte is one element of the first half of a group, its high half the element as
    far into the second half: both halves of a group come out of its bytes without a shuffle.
    """
    raise Gap("reshape to [n, k / group, group] and split the last axis in two")


def smooth(x, weight, alpha=0.5):
    """Scale factors s [k]: x / s and weight * s have the same product and smaller outliers.

    s = max|x| ** alpha / max|weight| ** (1 - alpha), over rows of x [m, k] and of weight [n, k].
    Source: Xiao et al., "SmoothQuant", 2023.
    """
    raise Gap("one line")
