"""4-bit weights on a CPU, in C: a row of weights is unpacked to cache and multiplied with x.

With one row of x it is bound by memory, and 4 bits take an eighth of the time of f32. With many
rows it is bound by arithmetic, and packed weights gain nothing. Cores share the rows of weights.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from stack.hosted.native import CFunction

Array = np.ndarray

SOURCE = """
#pragma GCC optimize("associative-math,no-signed-zeros,no-trapping-math")
#include <stdint.h>

/* Rows `first` to `last` of weights; `unpacked` is a buffer for one row. */
void w4a16(const float *restrict x, const uint8_t *restrict packed, const float *restrict scales,
           float *restrict y, float *restrict unpacked, int64_t rows, int64_t n, int64_t depth,
           int64_t groups, int64_t first, int64_t last) {
  int64_t half = depth / groups / 2;
  for (int64_t column = first; column < last; column++) {
    for (int64_t group = 0; group < groups; group++) {
      const uint8_t *restrict bytes = packed + column * depth / 2 + group * half;
      float *restrict low = unpacked + group * 2 * half, *restrict high = low + half;
      float scale = scales[column * groups + group];
      for (int64_t i = 0; i < half; i++) {
        low[i] = (float)((bytes[i] & 15) - 8) * scale;
        high[i] = (float)((bytes[i] >> 4) - 8) * scale;
      }
    }
    for (int64_t row = 0; row < rows; row++) {
      const float *restrict left = x + row * depth;
      float sum = 0;
      for (int64_t i = 0; i < depth; i++) sum += unpacked[i] * left[i];
      y[row * n + column] = sum;
    }
  }
}
"""
KERNEL = CFunction(SOURCE, "w4a16")


@cache
def _cores() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def w4a16(x: Array, packed: Array, scales: Array) -> Array:
    """Multiplies `x [..., k]` with `packed [n, k / 2]` and `scales [n, groups]`, dense, f32."""
    (n, groups), depth = scales.shape, x.shape[-1]
    y = np.empty((*x.shape[:-1], n), np.float32)
    rows = x.size // depth if depth else 0
    count = os.cpu_count() or 1

    def run(part: int) -> None:
        room = np.empty(depth, np.float32)
        bounds = n * part // count, n * (part + 1) // count
        KERNEL(x, packed, scales, y, room, rows, n, depth, groups, *bounds)

    list(_cores().map(run, range(count)))
    return y
