"""Measures peak rates of threads with one repeated instruction: multiply-adds, AMX tiles, loads.

Instructions form dependency chains in registers, so that nothing else limits them. Loads are from
L1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from stack.backends.mlir import amx, jit, threads
from stack.target import Cpu, Mma
from stack.target.record import LINE

TILES = 4  # accumulator tiles of AMX, which has eight registers
PROGRAMS, STEPS = 64, 4000
ALIGNED = f"{{alignment = {LINE} : i64}}"


@dataclass(frozen=True)
class Chains:
    """Chains of instructions that depend only on themselves, as many as there are accumulators.

    Attributes:
        vector: type of a vector of 32-bit floats.
        sums: type of the accumulators; "" if they are named registers and not carried values.
        before: statements before the loop.
        step: statements of one iteration, which compute %n0, %n1, ... from %s0, %s1, ...
        count: instructions per iteration.
    """

    vector: str
    sums: str
    before: list[str]
    step: list[str]
    count: int


def multiplying(cpu: Cpu, mma: Mma | None = None) -> Chains:
    """Chains of an instruction that multiplies and adds; by default that of f32."""
    vector, count = _vector(cpu), cpu.sums
    if mma is None:
        step = [f"%n{i} = math.fma %x, %y, %s{i} : {vector}" for i in range(count)]
        return Chains(vector, vector, [], step, count)
    call = f'llvm.call_intrinsic "{mma.intrinsic}"'
    if mma.rows > 1:
        ends = f"%t{TILES}, %t{TILES + 1}) : (i8, i8, i8) -> ()"
        step = [f"{call}(%t{i}, {ends}" for i in range(TILES)]
        return Chains(vector, "", _configured(), step, TILES)
    sums, kind = (
        f"vector<{mma.lanes}x{mma.sums}>",
        f"vector<{mma.depth * mma.lanes}x{mma.operands}>",
    )
    before = [f"%{a} = vector.bitcast %{x} : {vector} to {kind}" for a, x in ("ax", "by")]
    types = f"({sums}, {kind}, {kind}) -> {sums}"
    step = [f"%n{i} = {call}(%s{i}, %a, %b) : {types}" for i in range(count)]
    return Chains(vector, sums, before, step, count)


def loading(cpu: Cpu) -> Chains:
    """Chains of a vector load."""
    vector, step = _vector(cpu), list[str]()
    for i in range(cpu.sums):
        step.append(f"%l{i} = llvm.load volatile %q{i} {ALIGNED} : !llvm.ptr -> {vector}")
        step.append(f"%n{i} = arith.addf %s{i}, %l{i} : {vector}")
    return Chains(vector, vector, [], step, cpu.sums)


def _vector(cpu: Cpu) -> str:
    return f"vector<{cpu.lanes}xf32>"


def _configured() -> list[str]:
    """Statements that set all tile registers to zero."""
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
    """Returns a kernel of `PROGRAMS` parallel iterations; each runs the chains `steps` times."""
    sums, vector, numbers = chains.sums, chains.vector, range(chains.count if chains.sums else 0)
    types = ", ".join([sums] * len(numbers))
    lines = [
        "%zero = arith.constant 0 : i64",
        "%one = arith.constant 1 : i64",
        f"%steps = arith.constant {steps} : i64",
        "%at = llvm.load %table : !llvm.ptr -> !llvm.ptr",
    ]
    for i in range(chains.count):
        for pointer, place in (("q", LINE * i), ("o", LINE * (chains.count + i))):
            address = f"llvm.getelementptr %at[{place}] : (!llvm.ptr) -> !llvm.ptr, i8"
            lines.append(f"%{pointer}{i} = {address}")
    for i, x in enumerate("xy"):
        lines.append(f"%{x} = llvm.load %q{i} {ALIGNED} : !llvm.ptr -> {vector}")
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
    return "\n".join([threads.DECLARATION + threads.body(body), *lines, entry])


def operands(chains: Chains) -> np.ndarray:
    """Zeros: a cache line per chain that kernels read, and as many that they write."""
    lines, words = 2 * chains.count, LINE // 4
    held = np.zeros((lines + 1) * words, np.float32)
    start = -held.ctypes.data % LINE // held.itemsize
    return held[start : start + lines * words].reshape(lines, words)


def rate(chains: Chains, rounds: int = 5) -> float:
    """Instructions per second, over all threads: the best of some calls."""
    return PROGRAMS * STEPS * chains.count / seconds(chains, STEPS, rounds)


def seconds(chains: Chains, steps: int, rounds: int) -> float:
    """Seconds of a call: the best of some calls."""
    kernel = jit.build(kernel_text(chains, steps), ["kernel"])["kernel"]
    memory = operands(chains)
    times: list[float] = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        kernel(memory.ctypes.data)
        times.append(time.perf_counter() - begun)
    return min(times[1:])
