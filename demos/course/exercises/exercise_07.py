"""Exercise 7: gradients, and what they cost."""

import stack.mini as mini  # noqa: F401
from stack.demos.course.answers import Gap


def softplus_gradient(node, g):
    """The rule of log(1 + exp(x)): the gradients by each operand, from `g`, that by the result.

    `node.args[0]` is x. The derivative is 1 / (1 + exp(-x)). Ops are made by mini.make("exp", x).
    """
    raise Gap("a list with one node")


def is_kept(size, flops, peak, rate):
    """True if a value of `size` bytes is kept, which is written once and read once at `rate`, or
    computed again with `flops` operations at `peak`: whichever takes less time."""
    raise Gap("one comparison")


def best_segment(layers):
    """The s, a divisor of `layers`, for which layers / s + s is least.

    Checkpointing keeps each s-th result, and holds those of one segment while it is recomputed.
    """
    raise Gap("try all divisors")
