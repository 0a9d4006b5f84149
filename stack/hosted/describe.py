"""Declared operators as rows for `stackc ops`."""

from __future__ import annotations

from typing import Any

from stack.hosted.declaration import Kernel, Op
from stack.hosted.registry import declared, find


def hosted_rows() -> list[dict[str, Any]]:
    """Returns a row for each operator: its signature, kernels and documentation."""
    return [_row(find(name)) for name in declared()]


def _row(made: Op) -> dict[str, Any]:
    given = made.gradient.name if made.gradient is not None else "of the decomposition"
    return {
        "name": made.name,
        "doc": made.doc,
        "kind": "hosted",
        "operands": list(made.operands),
        "attributes": [
            f"{a.name}: {a.kind.__name__} = {a.default!r}" for a in made.attributes.values()
        ],
        "levels": ["tensor"],
        "rule": made.rule,
        "derivative": given,
        "autocast": made.autocast or "none",
        "kernels": [_kernel(k) for k in made.kernels] or ["none: the decomposition is compiled"],
        "torch": f"torch.ops.stack.{made.name.replace('.', '_')}",
    }


def _kernel(kernel: Kernel) -> str:
    return f"{kernel.device} {kernel.name} ({kernel.kind}; {' '.join(kernel.dtypes)})"
