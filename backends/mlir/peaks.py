"""What threads reach with one instruction again and again: multiply-adds, tiles of AMX, loads.

Chains in registers, so that nothing else bounds them; loads are from the first-level cache.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from stack.target import Mma

from . import amx, jit, threads

CHAINS = 12  # independent sums: latency times issue width, with some to spare
TILES = 4  # of them where they are tiles: AMX has eight registers
PROGRAMS, STEPS = 64, 8000
WORDS = 16  # of a vector
LINE = f"vector<{WORDS}xf32>"
ALIGNED = f"{{alignment = {4 * WORDS} : i64}}"


@dataclass(frozen=True)
class Chains:
    """Instructions that wait for nothing but themselves.

    Attributes:
        sums: type of what they add to, "" where that is named, not carried.
        before: statements ahead of the loop.
        step: those of one turn, which make %n0, %n1 and so on of %s0, %s1.
    """

    sums: str
    before: list[str]
    step: list[str]
    count: int = CHAINS


def multiplying(mma: Mma | None = None) -> Chains:
    """Of an instruction that multiplies and adds; by default that of f32."""
    if mma is None:
        return Chains(LINE, [], [f"%n{i} = math.fma %x, %y, %s{i} : {LINE}" for i in range(CHAINS)])
    call = f'llvm.call_intrinsic "{mma.intrinsic}"'
    if mma.rows > 1:
        ends = f"%t{TILES}, %t{TILES + 1}) : (i8, i8, i8) -> ()"
        return Chains("", _configured(), [f"{call}(%t{i}, {ends}" for i in range(TILES)], TILES)
    sums, kind = (
        f"vector<{mma.lanes}x{mma.sums}>",
        f"vector<{mma.depth * mma.lanes}x{mma.operands}>",
    )
    before = [f"%{a} = vector.bitcast %{x} : {LINE} to {kind}" for a, x in ("ax", "by")]
    types = f"({sums}, {kind}, {kind}) -> {sums}"
    return Chains(sums, before, [f"%n{i} = {call}(%s{i}, %a, %b) : {types}" for i in range(CHAINS)])


def loading() -> Chains:
    """Of a load of a vector."""
    step: list[str] = []
    for i in range(CHAINS):
        step.append(f"%l{i} = llvm.load volatile %q{i} {ALIGNED} : !llvm.ptr -> {LINE}")
        step.append(f"%n{i} = arith.addf %s{i}, %l{i} : {LINE}")
    return Chains(LINE, [], step)


def _configured() -> list[str]:
    """Tiles of zeros in all registers."""
    numbers = range(amx.REGISTERS)
    layout = f"vector<{amx.LAYOUT}xi8>"
    return [
        *(f"%t{i} = arith.constant {i} : i8" for i in numbers),
        f"%layout = arith.constant dense<{amx.layout()}> : {layout}",
        f"%tiles = llvm.alloca %one x {layout} : (i64) -> !llvm.ptr",
        f"llvm.store %layout, %tiles : {layout}, !llvm.ptr",
        'llvm.call_intrinsic "llvm.x86.ldtilecfg"(%tiles) : (!llvm.ptr) -> ()',
        *(f'llvm.call_intrinsic "llvm.x86.tilezero"(%t{i}) : (i8) -> ()' for i in numbers),
    ]


def kernel_text(chains: Chains, steps: int = STEPS, name: str = "kernel") -> str:
    """A kernel of `PROGRAMS` that threads share: each takes `steps` turns of the chains."""
    sums, numbers = chains.sums, range(chains.count if chains.sums else 0)
    types = ", ".join([sums] * len(numbers))
    lines = [
        "%zero = arith.constant 0 : i64",
        "%one = arith.constant 1 : i64",
        f"%steps = arith.constant {steps} : i64",
        "%at = llvm.load %table : !llvm.ptr -> !llvm.ptr",
    ]
    for i in range(CHAINS):
        for pointer, place in (("q", i), ("o", CHAINS + i)):
            address = f"llvm.getelementptr %at[{place}] : (!llvm.ptr) -> !llvm.ptr, {LINE}"
            lines.append(f"%{pointer}{i} = {address}")
    lines += [f"%{x} = llvm.load %q{i} {ALIGNED} : !llvm.ptr -> {LINE}" for i, x in enumerate("xy")]
    lines += [f"%z{i} = llvm.load %q{i} {ALIGNED} : !llvm.ptr -> {sums}" for i in numbers]
    lines += [*chains.before, "scf.for %i = %lo to %hi step %one : i64 {"]
    loop = "scf.for %k = %zero to %steps step %one"
    if numbers:
        carried = ", ".join(f"%s{i} = %z{i}" for i in numbers)
        lines += [f"%r:{len(numbers)} = {loop} iter_args({carried}) -> ({types}) : i64 {{"]
        lines += [*chains.step, f"scf.yield {', '.join(f'%n{i}' for i in numbers)} : {types}", "}"]
        lines += [f"llvm.store %r#{i}, %o{i} {ALIGNED} : {sums}, !llvm.ptr" for i in numbers]
    else:
        lines += [f"{loop} : i64 {{", *chains.step, "}"]
    lines += ["}", *([] if numbers else [amx.RELEASE]), "llvm.return", "}"]
    body = f"{name}_body"
    entry = threads.entry(name, body, PROGRAMS)
    return "\n".join([threads.prelude() + threads.body(body), *lines, entry])


def operands() -> np.ndarray:
    """What kernels read, a line for each chain, and as many lines that they write: zeros."""
    held = np.zeros((2 * CHAINS + 1) * WORDS, np.float32)
    start = -held.ctypes.data % held[:WORDS].nbytes // held.itemsize
    return held[start : start + 2 * CHAINS * WORDS].reshape(2 * CHAINS, WORDS)


def rate(chains: Chains, rounds: int = 5) -> float:
    """Instructions a second, of all threads: the best of some calls."""
    return PROGRAMS * STEPS * chains.count / seconds(chains, STEPS, rounds)


def seconds(chains: Chains, steps: int, rounds: int) -> float:
    """The best of some calls."""
    kernel = jit.build(kernel_text(chains, steps), ["kernel"])["kernel"]
    memory = operands()
    times: list[float] = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        kernel(memory.ctypes.data)
        times.append(time.perf_counter() - begun)
    return min(times[1:])
