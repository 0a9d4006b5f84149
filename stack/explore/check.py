"""Check that every stage computes the same as the program, by interpreting both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stack.explore.overlap import overlaps
from stack.rewrite.truth import Arrays, Truth, Verdict
from stack.run.record import Stage


def check_stages(stages: Sequence[Stage], given: Arrays = ()) -> Iterator[Verdict]:
    """Interprets the IR of every stage on several kinds of inputs and compares it with the first.

    Also checks the memory plan of every stage. A stage whose parameters differ, as after weights
    are packed, cannot run on the same inputs: it is not compared, and later stages are compared
    with it. `given`: the program's own arguments, which are checked first.
    """
    funcs = [(s, s.func) for s in stages if s.func is not None]
    truth = Truth(funcs[0][1], given=given)
    for stage, func in funcs[1:]:
        truth.allow(stage.inexact)
        bound = func.bind(truth.sizes) if func.symbols else func
        if [p.type for p in bound.params] != [p.type for p in truth.func.params]:
            truth = Truth(func)
            continue
        for kind in truth.kinds:
            yield truth.verdict(stage.name, kind, bound)
        for overlap in overlaps(func):
            yield Verdict(stage.name, "memory", 0.0, str(overlap))
