"""Count the instructions of a matmul's inner loop in its assembly (x86-64, AT&T syntax)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MULTIPLIES = ("vfmadd", "vdpbf16ps", "vpdpbusd", "tdp", "vmulp", "vpmul", "vpmadd")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)(?:\s+[#;].*)?$")
_TARGET = re.compile(r"^([0-9a-f]+) <")
_WRITES = re.compile(r"\)(\{%k\d\})?$")  # the last operand is in memory
# these instructions do not store, even with a memory operand last
_READERS = ("cmp", "test", "prefetch", "push", "j")
_SECTION = "// ---- "


@dataclass(frozen=True)
class InnerLoop:
    """Instruction counts of one iteration.

    Attributes:
        multiplies: multiplications, including fused multiply-adds.
        loads: instructions that read memory, including multiplies with a memory operand.
        stores: instructions that write memory.
        others: addresses, shuffles, prefetches, the branch.
    """

    multiplies: int
    loads: int
    stores: int
    others: int

    def __str__(self) -> str:
        counts = {
            "multiply": self.multiplies,
            "load": self.loads,
            "store": self.stores,
            "other": self.others,
        }
        return ", ".join(f"{n} {name}" for name, n in counts.items() if n)


def kernels_of(listing: str) -> dict[str, str]:
    """Splits the stage `asm` into the listing of each kernel, by name."""
    parts = f"\n{listing}".split(f"\n{_SECTION}")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def inner_loop(listing: str) -> InnerLoop | None:
    """Returns the innermost loop with the most multiplies, or None if there is none.

    Among equals, returns the one with the fewest loads: it reuses them for more rows.
    """
    code = [(int(m[1], 16), m[2], m[3]) for m in map(_LINE.match, listing.splitlines()) if m]
    places = {address: i for i, (address, _, _) in enumerate(code)}
    spans: list[tuple[int, int]] = []
    for i, (address, name, rest) in enumerate(code):
        found = _TARGET.match(rest) if name.startswith("j") else None
        start = int(found[1], 16) if found else address + 1
        if start <= address and start in places:
            spans.append((places[start], i))
    inner = [s for s in spans if not any(s != o and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    counted = [_counted([(n, rest) for _, n, rest in code[a : b + 1]]) for a, b in inner]
    best = max(counted, key=lambda c: (c.multiplies, -c.loads), default=None)
    return best if best is not None and best.multiplies else None


def _counted(code: list[tuple[str, str]]) -> InnerLoop:
    counts = dict.fromkeys(("multiplies", "loads", "stores", "others"), 0)
    for name, rest in code:
        if "nop" in name + rest:
            continue
        is_multiply = name.startswith(MULTIPLIES)
        is_store = bool(_WRITES.search(rest)) and not name.startswith(_READERS)
        is_load = "(" in rest and not is_store and not name.startswith(("lea", "prefetch"))
        counts["multiplies"] += is_multiply
        counts["loads"] += is_load
        counts["stores"] += is_store
        counts["others"] += not (is_multiply or is_store or is_load)
    return InnerLoop(**counts)
