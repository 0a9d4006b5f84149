"""Exercise 10: places, and what they cost."""

from stack.demos.course.answers import Gap


def places():
    """Return shardings of the values of `(relu(x @ gate) * (x @ up)) @ down` on a mesh tp=4.

    They are a tuple of texts. x and the result of the program are whole on each rank; each of gate,
    up [128, 512] and down [512, 128] is cut in four. There is to be one collective.
    """
    raise Gap('such as ("x: -, -", "gate: ...", ...)')


def ring_bytes(size, ranks):
    """Bytes that each rank sends in an all-reduce of `size` bytes by a ring."""
    raise Gap("a reduce-scatter, then an all-gather: each sends (ranks - 1) parts")


def ring_seconds(size, ranks, latency, rate):
    """Time of that all-reduce: 2 (ranks - 1) steps, each a latency and a part at `rate`."""
    raise Gap("steps times what one step takes")
