"""Solutions of exercise 13."""


def ridge(peak, rate):
    """The intensity at which computing and moving take the same time."""
    return peak / rate


def reachable(flops, moved, peak, rate):
    """The rate that a kernel can reach."""
    return min(peak, flops / moved * rate)


def least_rows(k, n, size, peak, rate, most=1 << 20):
    """The least m for which a matmul is bound by compute."""
    low, high = 0, most  # not bound by compute, and bound if any is
    if not _bound_by_compute(high, k, n, size, peak, rate):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _bound_by_compute(middle, k, n, size, peak, rate):
            high = middle
        else:
            low = middle
    return high


def _bound_by_compute(m, k, n, size, peak, rate):
    flops, moved = 2 * m * k * n, size * (m * k + k * n + m * n)
    return flops * rate >= peak * moved
