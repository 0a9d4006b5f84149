"""Solutions of exercise 3."""

from stack.rewrite import Ok, Why
from stack.rewrite.fusion import FusionRule


class OneReduction(FusionRule):
    """Anything may share a kernel, but a kernel has at most one reduction."""

    def legal(self, producer, consumer, maps):
        if producer.reduces and consumer.reduces:
            return Why("two reductions in one kernel")
        return Ok


def profitable(flops, size, readers, peak, rate):
    """True if computing a value again for each of its readers is faster than keeping it."""
    keeping = flops / peak + (1 + readers) * size / rate
    return readers * flops / peak < keeping
