"""The CPU at hand."""

from __future__ import annotations

import ctypes
import functools
import platform
import re
from collections.abc import Iterable
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
    "neon": {"neon"},  # which every AArch64 has
}
ARCH_PRCTL, REQUEST_STATE, TILES = 158, 0x1023, 18  # Linux on x86-64: call, request, state


@functools.cache
def cpu_at_hand() -> Cpu:
    """This machine's CPU: the numbers of the target whose instructions it has."""
    cpu = as_cpu(load(name_of(_flags())))
    missing = missing_here(cpu.features)
    features = tuple(f for f in cpu.features if f not in missing)
    refused = "Linux does not let this process use AMX" if _flags() < _listed() else ""
    return replace(cpu, arch=NATIVE, features=features, refused=refused)


def name_of(flags: frozenset[str]) -> str:
    """The target of a CPU that can do this."""
    return next((name for name, needs in NEEDS.items() if needs <= flags), "generic")


def missing_here(features: Iterable[str]) -> list[str]:
    """Features, by LLVM's names, that the CPU at hand does not have, or does not tell of."""
    here = {_plain(flag) for flag in _flags()}
    return [f for f in features if _plain(f) not in here]


def _plain(name: str) -> str:
    """The name of a feature as both Linux and LLVM write it."""
    return re.sub("[_-]", "", name)


@functools.cache
def _flags() -> frozenset[str]:
    """What the CPU can do, and Linux lets this process do."""
    return permitted(_listed())


@functools.cache
def _listed() -> frozenset[str]:
    """What the CPU can do by what Linux tells, or, elsewhere, by its architecture alone."""
    try:
        told = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        told = ""
    return listed(platform.machine(), told)


def listed(machine: str, told: str) -> frozenset[str]:
    """What a CPU can do: by its architecture, and as Linux tells of its first core."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    flags = frozenset(found[1].split() if found else ())
    return flags | {"neon"} if machine.lower() in ("aarch64", "arm64") else flags


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
