"""Solutions of exercise 8."""

import numpy as np


def quantize(weight, group):
    """Codes and scales of groups."""
    n, k = weight.shape
    parts = weight.reshape(n, k // group, group)
    top = np.abs(parts).max(-1)
    scales = np.where(top > 0, top / 7, 1).astype(np.float32)
    codes = np.clip(np.rint(parts / scales[..., None]), -8, 7)
    return codes.reshape(n, k).astype(np.int8), scales


def pack(codes, group):
    """Two codes in a byte, of the two halves of a group."""
    n, k = codes.shape
    held = (codes.astype(np.int16) + 8).astype(np.uint8).reshape(n, k // group, group)
    first, second = np.split(held, 2, axis=2)
    return (first | second << 4).reshape(n, k // 2)


def smooth(x, weight, alpha=0.5):
    """Factors that move outliers of x into the weights."""
    return np.abs(x).max(0) ** alpha / np.abs(weight).max(0) ** (1 - alpha)
