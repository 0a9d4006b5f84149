"""Carries source lines to machine code: MLIR locations, LLVM debug information, listings.

Kernels that run are compiled without lines, so that equal kernels have equal text. Those shown to
readers have the same instructions, with lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..runtime.names import OWN, place_of

SCOPES = "builtin.module(ensure-debug-info-scope-on-llvm-func{emission-kind=LineTablesOnly})"
_LINE = re.compile(r"(?:; )?(?:\./)?(\S+:\d+)(?: \(discriminator \d+\))?")
_SCOPE = re.compile(r"(?:; )?[\w.$]+\(\):")


def location(lines: Sequence[str]) -> str:
    """`loc("block.py":42:0)` for `block.py:42 Attn.wq`; several lines become a fused location."""
    places = dict.fromkeys(_place(line) for line in lines)
    return f"loc({next(iter(places))})" if len(places) == 1 else f"loc(fused[{', '.join(places)}])"


def _place(line: str) -> str:
    file, number = place_of(line)
    escaped = file.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}":{number}:0'


def add_debug_info(mlir: Any, module: Any, context: Any) -> None:
    """Add debug information for DWARF lines to a module in the llvm dialect.

    Functions without a source line get none, so that their inlined code has the line of the call.
    """
    mlir.passmanager.PassManager.parse(SCOPES, context).run(module.operation)
    nowhere = mlir.ir.Location.unknown(context)
    for function in module.body.operations:
        inside = list(_operations(function.operation))
        if not any(_is_source(op.location) for op in inside):
            for op in (function.operation, *inside):
                op.location = nowhere


def _operations(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


def _is_source(found: Any) -> bool:
    return re.search(r'"(?!-")[^"]+":\d+:\d+', str(found)) is not None


def listing(lines: Iterable[str]) -> Iterator[str]:
    """A disassembly as printed by `objdump -l`, with each source line as a comment."""
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            if not _SCOPE.fullmatch(line):
                yield line
        elif found[1].startswith(f"{OWN}:"):
            yield "; no source line"
        else:
            yield f"; {found[1]}"
