"""Solutions of exercise 11."""

import math


def ratio(ours, theirs, noisy=0.05):
    """Return how many times as long as ours theirs takes, or None if that is unknown."""
    for row in (ours, theirs):
        if not row["run_ms"] or (row["run_ms_spread"] or 0) > noisy * row["run_ms"]:
            return None
    return theirs["run_ms"] / ours["run_ms"]


def fewest_kernels(rows):
    """Names of the systems that are right and run the fewest steps."""
    steps = {
        f"{r['system']}/{r['via']}": r["kernels"] + r["library_calls"] for r in rows if r["ok"]
    }
    return [name for name, n in steps.items() if n == min(steps.values())]


def geometric_mean(ratios):
    """The mean of ratios, without those that are None."""
    held = [r for r in ratios if r is not None]
    return math.exp(sum(map(math.log, held)) / len(held)) if held else None
