"""A tile of a gated scan in Triton: runs of consecutive steps, each in one thread.

Tiles are [runs, steps, channels]. Most of a scan is done in registers, one step after the other,
and 16 bytes of channels beside each other; threads tell each other what a run as a whole does.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def after(gate1, x1, gate2, x2):
    """h -> gate h + x, one after the other."""
    return gate1 * gate2, gate2 * x1 + x2


@triton.jit
def _ends(tile, STEPS: tl.constexpr):
    """The last step of each run."""
    is_last = tl.arange(0, STEPS)[None, :, None] == STEPS - 1
    return tl.sum(tl.where(is_last, tile, 0.0), 1)


@triton.jit
def runs_of(gate, x, STEPS: tl.constexpr):
    """Of a tile [runs, steps, channels] each run by itself: its maps so far, and all of it."""
    gates, values = tl.associative_scan((gate.to(tl.float32), x.to(tl.float32)), 1, after)
    return gates, values, _ends(gates, STEPS), _ends(values, STEPS)


@triton.jit
def joined(gates, values, gate, end, state, RUNS: tl.constexpr):
    """States of a tile by its runs, and what comes after it.

    The first row of `state [runs, channels]` is what comes before.
    """
    is_first = tl.arange(0, RUNS)[:, None] == 0
    end = tl.where(is_first, gate * state + end, end)
    ends = tl.associative_scan((gate, end), 0, after)[1]
    run_before = (tl.arange(0, RUNS)[:, None] + RUNS - 1) % RUNS  # of the first: the last
    ends = tl.gather(ends, tl.broadcast_to(run_before, ends.shape), 0)
    before = tl.where(is_first, state, ends)
    return gates * before[:, None, :] + values, ends


@triton.jit
def steps_of(RUNS: tl.constexpr, STEPS: tl.constexpr):
    """The steps of a tile, from its start."""
    return tl.arange(0, RUNS)[:, None, None] * STEPS + tl.arange(0, STEPS)[None, :, None]
