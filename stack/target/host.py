"""The CPU at hand."""

from __future__ import annotations

import ctypes
import functools
import platform
import re
from dataclasses import replace
from pathlib import Path

from stack.target.files import as_cpu, load
from stack.target.record import Cpu

NATIVE = "native"  # the arch of the CPU at hand: LLVM asks it what it can do
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
NEEDS = {
    "amx": {*AVX512, "avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512": AVX512,
    "avx2": {"avx2", "fma"},
}
ARCH_PRCTL, REQUEST_STATE, TILES = 158, 0x1023, 18  # Linux on x86-64: call, request, state


@functools.cache
def cpu_at_hand() -> Cpu:
    """This machine's CPU: the numbers of the target whose instructions it has."""
    cpu = as_cpu(load(name_of(platform.machine(), _flags())))
    missing = missing_here(cpu)
    features = tuple(f for f in cpu.features if f not in missing)
    refused = "Linux does not let this process use AMX" if _flags() < _listed() else ""
    return replace(cpu, arch=NATIVE, features=features, refused=refused)


def name_of(machine: str, flags: frozenset[str]) -> str:
    """The target of a CPU: its architecture, and what it can do as Linux names it."""
    if machine.lower() in ("aarch64", "arm64"):
        return "neon"
    return next((name for name, needs in NEEDS.items() if needs <= flags), "generic")


def missing_here(cpu: Cpu) -> list[str]:
    """Features of a CPU that the one at hand does not list; none where it lists nothing."""
    here = {re.sub("[_-]", "", flag) for flag in _flags()}
    return [f for f in cpu.features if here and re.sub("[_-]", "", f) not in here]


@functools.cache
def _flags() -> frozenset[str]:
    """What the CPU can do, and Linux lets this process do."""
    return permitted(_listed())


@functools.cache
def _listed() -> frozenset[str]:
    """What Linux says that the CPU can do; Arm calls NEON Advanced SIMD."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    flags = frozenset(found.partition(":")[2].split())
    return flags | {"neon"} if "asimd" in flags else flags


def permitted(flags: frozenset[str]) -> frozenset[str]:
    """Flags without those of AMX where Linux does not let this process use it."""
    if "amx_tile" not in flags or _may_use_tiles():
        return flags
    return frozenset(f for f in flags if not f.startswith("amx"))


def _may_use_tiles() -> bool:
    """Ask Linux for the registers of AMX, which are large: once for a process and its threads.

    Linux, Documentation/arch/x86/xstate.rst.
    """
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_STATE, TILES) == 0
