"""The function that a pipeline's fusion pass gets, so that other groups can be tried on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.rewrite.fusion_pass import FusionPass
from stack.rewrite.given_groups import group_text
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import Pipeline
from stack.run.pipeline_edits import Stages
from stack.target import Target


@dataclass(frozen=True)
class FusionInput:
    """The first pass of a pipeline that forms groups, its stage, and the function that it gets.

    Attributes:
        judged: that pass.
        fusion: the pass that forms given groups in its place, and says which are legal.
        prepared: the function after the rewrites of `fusion` itself; its values name groups.
        own: the function that the judged pass returns.
    """

    judged: Pass
    fusion: FusionPass
    stage: str
    func: Func
    prepared: Func
    own: Func
    machine: Target | None

    def edit(self, groups: Iterable[Iterable[Node]]) -> str:
        """Returns changes to a pipeline, as text, that form these groups.

        Groups are nodes of `prepared`; nodes that are in none stay alone.
        """
        return f"-{self.judged.name},+{Pipeline([self._given(groups)]).text}@{self.stage}"

    def fused(self, groups: Iterable[Iterable[Node]]) -> Func:
        """Returns the function with these groups."""
        return Pipeline([self._given(groups)]).run(self.func, target=self.machine).func

    def _given(self, groups: Iterable[Iterable[Node]]) -> FusionPass:
        texts = [group_text(self.prepared.body, nodes) for nodes in groups]
        return self.fusion.with_groups([text for text in texts if text] or [""])


def fusion_input(
    func: Func, stages: Stages, machine: Target | None, fusion: FusionPass | None = None
) -> FusionInput:
    """Runs the passes of some stages until one forms groups.

    `fusion` forms given groups in place of that pass; by default the pass itself does.

    Raises UsageError if no pass forms groups.
    """
    for stage, spec in stages:
        for judged in Pipeline(spec).passes:
            record = Pipeline([judged]).run(func, target=machine).records[0]
            forms = judged if isinstance(judged, FusionPass) else fusion if record.formed else None
            if forms is None:
                func = record.after
                continue
            used = fusion or forms
            prepared = used.prepared(func, Log(target=machine))
            return FusionInput(judged, used, stage, func, prepared, record.after, machine)
    raise UsageError(
        "no pass of this pipeline forms groups by fusion rules, as `fuse` does; it runs"
        f" {', '.join(each.name for _, spec in stages for each in Pipeline(spec).passes)}"
    )


def fusion_of(stages: Stages) -> FusionPass | None:
    """Returns the first fusion pass of some stages, whose groups can be given."""
    passes = (each for _, spec in stages for each in Pipeline(spec).passes)
    return next((each for each in passes if isinstance(each, FusionPass)), None)
