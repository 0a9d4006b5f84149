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


def pack(codes):
    """Two codes in a byte."""
    held = (codes.astype(np.int16) + 8).astype(np.uint8)
    return held[:, 0::2] | held[:, 1::2] << 4


def smooth(x, weight, alpha=0.5):
    """Factors that move outliers of x into the weights."""
    return np.abs(x).max(0) ** alpha / np.abs(weight).max(0) ** (1 - alpha)
