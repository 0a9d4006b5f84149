"""Solutions of exercise 6."""


def transactions(stride, size=2, lanes=32, line=128):
    """How many memory lines a warp touches."""
    return len({(i * stride + b) // line for i in range(lanes) for b in range(size)})


def shared():
    """Blocks of 32 x 32, a column for each lane, operands in shared memory 64 deep."""
    return "m=32@grid n=32@grid n=1@lane k=64@serial"


def tensor():
    """Tensor cores: blocks of 64 x 128 of the grid, 32 deep, two stages in flight."""
    return "m=64@grid n=128@grid k=32@serial stages=2"
