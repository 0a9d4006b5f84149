"""The instructions that LLVM may use: those of the target CPU."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Any

from stack.errors import UsageError
from stack.target import Cpu, as_cpu, cpu_at_hand, load
from stack.target.host import NATIVE, missing_here

_HEAD = re.compile(r"^(llvm\.func .*?)(?: attributes \{(.*)\})? \{$", re.MULTILINE)
_FEATURES = re.compile(r"#llvm\.target_features<\[(.*?)\]>")


def cpu_of(options: Mapping[str, Any]) -> Cpu:
    """The CPU of `options["target"]`; by default this machine's. Raises UsageError."""
    asked = options.get("target")
    return as_cpu(load(str(asked))) if asked else cpu_at_hand()


def check_runs_here(cpu: Cpu) -> None:
    """Raise UsageError for a CPU with instructions that this one does not have."""
    missing = missing_here(cpu.features)
    if missing:
        raise UsageError(
            f"this CPU does not run code for target {cpu.name!r}: it has no {', '.join(missing)};"
            f" `stackc dump TARGET --target {cpu.name}` prints it"
        )


def check_text_runs_here(text: str) -> None:
    """Raise UsageError for a module that requires instructions which this CPU does not have."""
    asked = (f for found in _FEATURES.findall(text) for f in re.findall(r'"\+([^"]+)"', found))
    missing = missing_here(dict.fromkeys(asked))
    if missing:
        raise UsageError(f"this CPU does not run the kernel: it has no {', '.join(missing)}")


def with_instructions(text: str, cpu: Cpu) -> str:
    """Sets the target CPU on each function of a module; nothing is set for this machine's CPU."""
    if cpu.arch == NATIVE:
        return text
    listed = ", ".join(f'"+{f}"' for f in cpu.features)
    own = f'target_cpu = "{cpu.arch}", target_features = #llvm.target_features<[{listed}]>'

    def head(match: re.Match[str]) -> str:
        both = ", ".join(filter(None, (match[2], own)))
        return f"{match[1]} attributes {{{both}}} {{"

    return _HEAD.sub(head, text)


def is_assembled_here(cpu: Cpu) -> bool:
    """True if the LLVM of this process, which has one architecture, can assemble for a CPU."""
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    return cpu.arch == NATIVE or is_arm == ("neon" in cpu.features)
