"""Peak rate of fused multiply-adds: independent chains in registers.

A matmul reaches the peak only if it is well written; this loop is the peak. It is a kernel in our
own IR, so that you can read what was measured.
"""

from __future__ import annotations

import time

import numpy as np

import stack.plugins as plugins
from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.run.backend import Backend

CHAINS = 12  # independent accumulators: more than latency times issue width
LANES = 16
PROGRAMS = 64
STEPS = 20_000


def fma_kernel(programs: int = PROGRAMS, steps: int = STEPS) -> Func:
    """Returns a kernel for the peak of arithmetic: parallel programs of independent vector fma.

    Each program computes `CHAINS` of them in each of `steps` iterations.
    """
    vector, memory = f"f32<{LANES}>", f"f32[{programs}, {LANES}]"
    chains = range(CHAINS)
    starts = "\n".join(f"%s{i} = mul(%v, {i + 1}.0:f32) : {vector}" for i in chains)
    params = ", ".join(f"%a{i}: {vector}" for i in chains)
    chain = "\n".join(f"%b{i} = fma(%a{i}, %v, %v) : {vector}" for i in chains)
    ends = ", ".join(f"%b{i}" for i in chains)
    items = "\n".join(f"%e{i} = item(%run) {{index={i}}} : {vector}" for i in chains)
    sums = "\n".join(f"%t{i + 1} = add(%t{i}, %e{i}) : {vector}" for i in chains)
    return parse(f"""
func @fma_peak(%x: f32[{LANES}]) -> ({memory}) at tensor {{
  %k = kernel(%x) {{level="loop", name="fma_peak"}} : {memory} {{(
      %p0: f32[{LANES}] in global, %o0: {memory} in global)
    %v = load(%p0, 0:i64) : {vector}
    {starts}
    %r = loop(%o0) {{kind="parallel"}} : {memory} in global {{(
        %i < {programs}, %o: {memory} in global)
      %turn = cast(%i) : f32[]
      %t = mul(%v, %turn) : {vector}
      %z0 = add(%s0, %t) : {vector}
      %run = loop(%z0, {", ".join(f"%s{i}" for i in chains if i)}) {{kind="serial"}}
          : ({", ".join([vector] * CHAINS)}) {{(%j < {steps}, {params})
        {chain}
        return {ends}
      }}
      %t0 = mul(%v, 0.0:f32) : {vector}
      {items}
      {sums}
      %done = store(%o, %t{CHAINS}, %i, 0:i64) : {memory} in global
      return %done
    }}
    return %r
  }}
  return %k
}}
""")


def fma_peak(rounds: int = 5) -> float:
    """Returns the flop/s of all threads, two per fma; 0 if the MLIR backend cannot run here."""
    taken = fma_seconds(PROGRAMS, STEPS, rounds)
    return fma_count(PROGRAMS, STEPS) / taken if taken else 0.0


def fma_count(programs: int, steps: int) -> float:
    """Returns the number of scalar operations in a call of `fma_kernel` with these arguments."""
    return 2.0 * programs * steps * CHAINS * LANES


def fma_seconds(programs: int, steps: int, rounds: int) -> float:
    """Returns the least seconds of a call of `fma_kernel`; 0 without a working MLIR backend."""
    try:
        backend: Backend = plugins.load("stack.backends", "mlir")
        if backend.missing() is not None:
            return 0.0
        run = backend.compile(fma_kernel(programs, steps), {}).run
    except StackError:
        return 0.0
    x = np.full(LANES, 0.5, np.float32)
    times: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run([x])
        times.append(time.perf_counter() - start)
    return min(times[1:])
