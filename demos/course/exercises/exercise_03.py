"""Exercise 3: the rule of a fusion pass."""

from stack.demos.course.answers import Gap
from stack.rewrite import Ok, Why  # noqa: F401
from stack.rewrite.fusion import FusionRule


class OneReduction(FusionRule):
    """Anything may share a kernel, but a kernel has at most one reduction.

    `producer` and `consumer` are groups so far: `.reduces` says whether one holds a reduction.
    """

    def legal(self, producer, consumer, maps):
        raise Gap("Ok, or Why(...) where both reduce")


def profitable(flops, size, readers, peak, rate):
    """True if computing a value again for each of its readers is faster than keeping it in memory.

    Keeping: compute it once, write its `size` bytes, and read them once for each reader. Again:
    compute it `readers` times, and no byte travels. `peak` flops and `rate` bytes in a second.
    """
    raise Gap("two times, one comparison")
