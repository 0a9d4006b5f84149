"""Exercise 6: rungs of the ladder. Schedules for `c = a @ b`, axes m, n and k."""

from stack.demos.course.answers import Gap


def transactions(stride, size=2, lanes=32, line=128):
    """Return how many memory lines a warp touches, if lane i reads `size` bytes at i * stride.

    A line is 128 bytes, and begins at a multiple of 128.
    """
    raise Gap("a set of line numbers")


def coalesced():
    """No shared memory: blocks of 16 x 32 of the grid, a column for each lane."""
    raise Gap("as rung `coalesced`, with other blocks")


def tensor():
    """Tensor cores: blocks of 64 x 128 of the grid, 32 deep, two stages in flight."""
    raise Gap("as rung `tensor`, with other blocks")
