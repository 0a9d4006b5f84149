"""A tile of a gated scan in Triton: runs of consecutive steps, each in one thread.

Tiles are [runs, steps, channels]. Most of a scan is sequential, in registers, on 16 bytes of
adjacent channels. Threads exchange only the composed map of each run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def after(gate1, x1, gate2, x2):
    """Composes two affine maps h -> gate h + x to the map that applies the first one first."""
    return gate1 * gate2, gate2 * x1 + x2


@triton.jit
def _ends(tile, STEPS: tl.constexpr):
    """Returns the values at the last step of each run of a tile, [runs, channels]."""
    is_last = tl.arange(0, STEPS)[None, :, None] == STEPS - 1
    return tl.sum(tl.where(is_last, tile, 0.0), 1)


@triton.jit
def runs_of(gate, x, STEPS: tl.constexpr):
    """Scans each run (steps of one thread) of a tile [runs, steps, channels]. Returns gate and
    value of the map from the run's start to each step, and of the map of the whole run."""
    gates, values = tl.associative_scan((gate.to(tl.float32), x.to(tl.float32)), 1, after)
    return gates, values, _ends(gates, STEPS), _ends(values, STEPS)


@triton.jit
def joined(gates, values, gate, end, state, RUNS: tl.constexpr):
    """Returns the states of a tile, from those of its runs, and the state after it.

    The first row of `state [runs, channels]` is the state before the tile.
    """
    is_first = tl.arange(0, RUNS)[:, None] == 0
    end = tl.where(is_first, gate * state + end, end)
    ends = tl.associative_scan((gate, end), 0, after)[1]
    run_before = (tl.arange(0, RUNS)[:, None] + RUNS - 1) % RUNS  # wraps around
    ends = tl.gather(ends, tl.broadcast_to(run_before, ends.shape), 0)
    before = tl.where(is_first, state, ends)
    return gates * before[:, None, :] + values, ends


@triton.jit
def steps_of(RUNS: tl.constexpr, STEPS: tl.constexpr):
    """Returns the number of each step within a tile, [runs, steps, 1]."""
    return tl.arange(0, RUNS)[:, None, None] * STEPS + tl.arange(0, STEPS)[None, :, None]
