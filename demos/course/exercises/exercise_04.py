"""Exercise 4: the arithmetic of blocks."""

from stack.demos.course.grading import Gap


def loads(rows, columns, depth, m, n):
    """How many numbers all blocks together load for a product of rows x depth by depth x columns.

    Each block of m x n results reads its m rows and its n columns once, along the whole depth.
    """
    raise Gap("blocks times what one of them reads")


def shared_bytes(m, n, k, stages, size):
    """Bytes of shared memory: blocks of both operands, `stages` of them, `size` bytes each."""
    raise Gap("an m x k block and a k x n block, for each stage")


def schedule():
    """A schedule for `c`, 64 x 64 by 64 x 64, on a CPU with AVX-512: 32 registers of 16 numbers.

    Its loads, as above, are at most 70,000, and the compiler takes it: results stay in registers.
    """
    raise Gap('text such as "m=1@unroll n=16@vector"')
