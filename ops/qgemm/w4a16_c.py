"""Weights of 4 bits on a CPU, in C: a row of weights is unpacked into cache, and meets all of x.

With one row of x memory is the limit, of which 4 bits take an eighth of what f32 does; with many,
arithmetic is, and unpacking gains nothing. Cores share the rows of weights.
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

/* Rows `first` to `last` of weights. `even` and `odd` are x [rows, half], the places of k by turns;
   `unpacked` has room for 2 * half floats. */
void w4a16(const float *restrict even, const float *restrict odd, const uint8_t *restrict packed,
           const float *restrict scales, float *restrict y, float *restrict unpacked, int64_t rows,
           int64_t n, int64_t half, int64_t groups, int64_t first, int64_t last) {
  int64_t size = half / groups;
  float *restrict low = unpacked, *restrict high = unpacked + half;
  for (int64_t column = first; column < last; column++) {
    const uint8_t *restrict bytes = packed + column * half;
    for (int64_t group = 0; group < groups; group++) {
      float scale = scales[column * groups + group];
      for (int64_t i = group * size; i < (group + 1) * size; i++) {
        low[i] = (float)((bytes[i] & 15) - 8) * scale;
        high[i] = (float)((bytes[i] >> 4) - 8) * scale;
      }
    }
    for (int64_t row = 0; row < rows; row++) {
      const float *restrict left = even + row * half, *restrict right = odd + row * half;
      float sum = 0;
      for (int64_t i = 0; i < half; i++) sum += low[i] * left[i] + high[i] * right[i];
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
    """`x [..., k]`, `packed [n, k / 2]`, `scales [n, groups]`, dense, f32."""
    (n, groups), half = scales.shape, packed.shape[1]
    rows = x.reshape(-1, 2 * half)
    even, odd = (np.ascontiguousarray(rows[:, i::2]) for i in (0, 1))
    y = np.empty((len(rows), n), np.float32)
    count = os.cpu_count() or 1

    def run(part: int) -> None:
        room = np.empty(2 * half, np.float32)
        bounds = n * part // count, n * (part + 1) // count
        KERNEL(even, odd, packed, scales, y, room, len(rows), n, half, groups, *bounds)

    list(_cores().map(run, range(count)))
    return y.reshape(*x.shape[:-1], n)
