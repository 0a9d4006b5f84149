"""The function that a pipeline's fusion pass gets, so that other groups can be tried on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.node import Func, Node
from stack.rewrite.fusion_pass import FusionPass
from stack.rewrite.given_groups import group_text
from stack.rewrite.log import Log
from stack.rewrite.pipeline import Pipeline, Record
from stack.run.pipeline_edits import Stages
from stack.target import Target


@dataclass(frozen=True)
class FusionInput:
    """The fusion pass of a pipeline, its stage, and the function at that point.

    Attributes:
        func: the function that the pass gets.
        prepared: the same after the rewrites of the pass itself; its values name groups.
    """

    fusion: FusionPass
    stage: str
    func: Func
    prepared: Func
    machine: Target | None

    def edit(self, groups: Iterable[Iterable[Node]]) -> str:
        """Returns changes to a pipeline, as text, that make the fusion pass form these groups.

        Groups are nodes of `prepared`; nodes that are in none stay alone.
        """
        return f"-{self.fusion.name},+{Pipeline([self._given(groups)]).text}@{self.stage}"

    def fused(self, groups: Iterable[Iterable[Node]] | None = None) -> Record:
        """Runs the fusion pass with its own groups, or with given ones, and returns its record."""
        fusion = self.fusion if groups is None else self._given(groups)
        return Pipeline([fusion]).run(self.func, target=self.machine).records[0]

    def _given(self, groups: Iterable[Iterable[Node]]) -> FusionPass:
        texts = [group_text(self.prepared.body, nodes) for nodes in groups]
        return self.fusion.with_groups([text for text in texts if text] or [""])


def fusion_input(func: Func, stages: Stages, machine: Target | None) -> FusionInput:
    """Runs the passes before the first fusion pass of some stages.

    Raises UsageError if no pass forms groups that can be replaced.
    """
    for stage, spec in stages:
        passes = Pipeline(spec).passes
        at = next((i for i, each in enumerate(passes) if isinstance(each, FusionPass)), None)
        if at is None:
            func = Pipeline(passes).run(func, target=machine).func
            continue
        fusion = passes[at]
        assert isinstance(fusion, FusionPass)
        func = Pipeline(passes[:at]).run(func, target=machine).func
        return FusionInput(fusion, stage, func, fusion.prepared(func, Log(target=machine)), machine)
    names = ", ".join(each.name for _, spec in stages for each in Pipeline(spec).passes)
    raise UsageError(
        f"no pass of this pipeline forms groups by fusion rules, as `fuse` does: {names}"
    )
