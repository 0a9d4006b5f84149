"""The error of a backend that rejects kernels of a lowered function."""

from __future__ import annotations

from collections.abc import Mapping

from stack.errors import StackError
from stack.ir.node import Node


class KernelRefused(StackError):
    """A backend's compiler rejects kernels, runs out of resources for them, or does not finish in
    time.

    `kernels` maps each kernel node of the lowered function to the reason. `stack.run.retreat`
    recompiles their fusion groups in other ways.
    """

    def __init__(self, kernels: Mapping[Node, str]) -> None:
        self.kernels = dict(kernels)
        rows = [f"kernel {n.attrs.get('name', n.op)}: {why}" for n, why in self.kernels.items()]
        super().__init__("\n".join(rows))
