"""Exercise 15: Triton kernels, run by the interpreter."""

import triton
import triton.language as tl

from stack.demos.course.answers import Gap


def programs(n, block):
    """The number of programs, so that each of n elements is in a block. n may be 0."""
    raise Gap("round up")


@triton.jit
def axpy_kernel(a, x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = a x + y, of n elements. Nothing behind the last element is read or written."""
    raise Gap("positions, a mask, two loads, one store")


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    """The softmax of row `program_id(0)`. Rows of x and of out begin `stride` elements apart.

    BLOCK >= columns. Scores may be large: exp must not overflow.
    """
    raise Gap("load with other=, subtract the maximum, exp, divide by the sum, store")
