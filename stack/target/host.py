"""The CPU at hand."""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import replace
from pathlib import Path

from stack.target.files import as_cpu, load
from stack.target.record import Cpu

NATIVE = "native"  # the arch of the CPU at hand: LLVM asks it what it can do
NEEDS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma"},
}


@functools.cache
def cpu_at_hand() -> Cpu:
    """This machine's CPU: the numbers of the target whose instructions it has."""
    return replace(as_cpu(load(name_of(platform.machine(), _flags()))), arch=NATIVE)


def name_of(machine: str, flags: frozenset[str]) -> str:
    """The target of a CPU: its architecture, and what it can do as Linux names it."""
    if machine.lower() in ("aarch64", "arm64"):
        return "neon"
    return next((name for name, needs in NEEDS.items() if needs <= flags), "generic")


def missing_here(cpu: Cpu) -> list[str]:
    """Features of a CPU that the one at hand does not list; none where it lists nothing."""
    here = {re.sub("[_-]", "", flag) for flag in _flags()}
    return [f for f in cpu.features if here and re.sub("[_-]", "", f) not in here]


def _flags() -> frozenset[str]:
    """What Linux says that the CPU can do; Arm calls NEON Advanced SIMD."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    flags = frozenset(found.partition(":")[2].split())
    return flags | {"neon"} if "asimd" in flags else flags
