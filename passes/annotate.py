"""annotate: shardings that the user gives for named values."""

from __future__ import annotations

from dataclasses import dataclass

from stack.errors import RuleError, UsageError
from stack.ir.func import Func
from stack.mesh.meshes import parse_mesh
from stack.passes.sharding.notation import annotated
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class Annotate(Pass):
    """Shard named values over a mesh as the user says.

    Attributes:
        mesh: its axes, as `dp=2, tp=4`.
        shard: values with their shardings, as `x: dp, -`; see `stack.passes.sharding.notation`.
    """

    mesh: str = ""
    shard: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        if not self.mesh or not log.spend(self.name):
            return func
        try:
            mesh = parse_mesh(self.mesh)
        except RuleError as error:
            raise UsageError(str(error)) from error
        return annotated(func, mesh, self.shard)
