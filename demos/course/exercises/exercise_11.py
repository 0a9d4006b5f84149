"""Exercise 11: reading a comparison. Rows are dicts as `stackc compare --json` prints them."""

from stack.demos.course.answers import Gap


def ratio(ours, theirs, noisy=0.05):
    """Return how many times as long as ours theirs takes, or None if that is unknown.

    Keys run_ms and run_ms_spread may be None (it did not run). A time whose spread is more than the
    share `noisy` of it makes no ratio.
    """
    raise Gap("None, or a quotient")


def fewest_kernels(rows):
    """Names `system/via` of the systems that are right and run the fewest steps, library calls
    counted too. Rows have ok, kernels, library_calls, system, via."""
    raise Gap("a list: there may be several")


def geometric_mean(ratios):
    """The mean of ratios, without those that are None; None where none is left.

    Twice as fast and half as fast is as fast.
    """
    raise Gap("exp of the mean of logarithms")
