"""Solutions of exercise 12."""

import numpy as np

from stack.rewrite import Pipeline

EDGES = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, 1e-38, 88.0, -104.0)


def _differ(one, other, arrays):
    with np.errstate(all="ignore"):
        want, have = one.interpret(*arrays), other.interpret(*arrays)
        same = np.allclose(want, have, rtol=1e-4, atol=1e-4, equal_nan=True)
        signs = np.array_equal(np.signbit(want), np.signbit(have)) or np.isnan(want).any()
    return not same or not signs


def first_wrong_rewrite(passes, func, arrays):
    """The number of the first rewrite after which the result is another."""
    records = Pipeline(passes).run(func).records
    low, high = 0, sum(len(r.rewrites) for r in records)
    if not high or not _differ(func, Pipeline(passes).run(func).func, arrays):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if _differ(func, Pipeline(passes).run(func, fuel=middle).func, arrays):
            high = middle
        else:
            low = middle
    return high


def telling_input(one, other):
    """Arrays on which two functions differ, or None."""
    shapes = [p.shape for p in one.params]
    for turn in range(len(EDGES)):
        for alone in (False, True):
            values = np.roll(EDGES, turn)[: 1 if alone else None]
            arrays = [np.resize(values, s).astype(np.float32) for s in shapes]
            if _differ(one, other, arrays):
                return arrays
    return None
