"""Detects the CPU of this machine."""

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

NATIVE = "native"  # the arch of this machine's CPU: LLVM detects its features
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
NEEDS = {
    "amx": {*AVX512, "avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512": AVX512,
    "avx2": {"avx2", "fma"},
    "neon": {"neon"},  # which every AArch64 has
}
_BARE = str.maketrans("", "", "_-")  # Linux and LLVM place these differently in a feature's name
ARCH_PRCTL, REQUEST_STATE, TILES = 158, 0x1023, 18  # Linux on x86-64: call, request, state


@functools.cache
def cpu_at_hand() -> Cpu:
    """This machine's CPU: the target that matches its instruction set."""
    usable, reported = _flags()
    cpu = as_cpu(load(name_of(usable)))
    missing = missing_here(cpu.features)
    features = tuple(f for f in cpu.features if f not in missing)
    refused = "Linux does not let this process use AMX" if usable < reported else ""
    return replace(cpu, arch=NATIVE, features=features, refused=refused)


def name_of(flags: frozenset[str]) -> str:
    """The name of the target for a CPU with these features."""
    return next((name for name, needs in NEEDS.items() if needs <= flags), "generic")


def missing_here(features: Iterable[str]) -> list[str]:
    """Features, by LLVM's names, that this CPU lacks or does not report."""
    here = {flag.translate(_BARE) for flag in _flags()[0]}
    return [f for f in features if f.translate(_BARE) not in here]


@functools.cache
def _flags() -> tuple[frozenset[str], frozenset[str]]:
    """The features of the CPU: those that Linux lets this process use, and those that it reports;
    on other systems those of its architecture.
    """
    try:
        told = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        told = ""
    usable = reported = listed(platform.machine(), told)
    if "amx_tile" in reported and not _may_use_tiles():
        usable = frozenset(flag for flag in reported if not flag.startswith("amx"))
    return usable, reported


def listed(machine: str, told: str) -> frozenset[str]:
    """The features of a CPU: those that `told`, the text of /proc/cpuinfo, lists for the first
    core, and those that the architecture `machine` implies.
    """
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    flags = frozenset(found[1].split() if found else ())
    return flags | {"neon"} if machine.lower() in ("aarch64", "arm64") else flags


def _may_use_tiles() -> bool:
    """Requests permission from Linux for the AMX registers, once for a process and its threads.

    Linux, Documentation/arch/x86/xstate.rst.
    """
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_STATE, TILES) == 0
