"""Solutions of exercise 6."""


def transactions(stride, size=2, lanes=32, line=128):
    """Return how many memory lines a warp touches."""
    return len({(i * stride + b) // line for i in range(lanes) for b in range(size)})


def coalesced():
    """No shared memory: blocks of 16 x 32 of the grid, a column for each lane."""
    return "m=16@grid n=32@grid n=1@lane"


def tensor():
    """Tensor cores: blocks of 64 x 128 of the grid, 32 deep, two stages in flight."""
    return "m=64@grid n=128@grid k=32@serial stages=2"
