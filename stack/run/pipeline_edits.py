"""Pipelines as changes to a backend's own: `default,+mine{x=1}@fused,-layout`.

Stages keep their names, so that a run with changes can be compared with one without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stack.errors import UsageError, unknown_name
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import Pipeline, parse_pipeline

DEFAULT = "default"
LOWERING_STAGES = ("tiled", "loop")  # of fusion groups to kernels
WEIGHTS = "weights"  # the stage of passes that see weights as constants
Passes = str | Pipeline
Stages = Sequence[tuple[str, Passes]]
_ITEM = re.compile(r"(?:[^,{}]|\{[^{}]*\})+")
_ADDED = re.compile(r"\+(?P<spec>[^@{]+(?:\{.*\})?)(?:@(?P<stage>[\w-]+))?")


def is_default(passes: Passes) -> bool:
    """True if the backend's own stages are requested, with or without changes."""
    return isinstance(passes, str) and passes.partition(",")[0].strip() == DEFAULT


def steer(stages: Stages, passes: Passes) -> Stages:
    """The stages of a backend with some passes removed, replaced or added.

    Args:
        passes: a pipeline that replaces all stages before `LOWERING_STAGES`; or `default`, then
            items in order: `-PASS` in all stages, `+PASS@STAGE` (stage "fused" by default). PASS is
            a name with options, or `file.py:Class`. An added pass takes the slot of the pass that
            was removed last from its stage; otherwise it comes at the end. The options of a pass
            that is removed and added again stay, unless they are given.

    Raises:
        UsageError: for an item of another form, and for unknown names, with the closest one.
    """
    if not isinstance(passes, str) or not is_default(passes):
        return [("passes", passes), *(s for s in stages if s[0] in LOWERING_STAGES)]
    _, *items = (item.strip() for item in _ITEM.findall(passes))
    if not items:
        return stages
    found = {name: _Stage(list(Pipeline(spec).passes)) for name, spec in stages}
    for item in items:
        added = _ADDED.fullmatch(item)
        if added is not None:
            stage = added["stage"] or "fused"
            if stage not in found:
                raise unknown_name("no stage", stage, found)
            found[stage].add(added["spec"])
        elif item.startswith("-"):
            _remove(found.values(), item[1:])
        else:
            raise UsageError(f"{item!r} is neither +PASS@STAGE nor -PASS, after {DEFAULT!r}")
    return [
        (name, Pipeline(found[name].passes) if found[name].changed else spec)
        for name, spec in stages
    ]


@dataclass
class _Stage:
    """The passes of one stage of a backend while the user's changes are applied. `place` is the
    index for the next added pass.
    """

    passes: list[Pass]
    place: int | None = None  # None: at the end
    removed: dict[str, Pass] = field(default_factory=dict[str, Pass])
    changed: bool = False

    def add(self, spec: str) -> None:
        """Adds a pass at the index of the last removed pass, or at the end if none was removed."""
        (made,) = parse_pipeline(spec, self.removed)
        place = len(self.passes) if self.place is None else self.place
        self.passes.insert(place, made)
        self.place = None if self.place is None else place + 1
        self.changed = True

    def remove(self, name: str) -> bool:
        """Removes each occurrence of the pass `name` from the stage. Returns False if there is
        none.
        """
        gone = [i for i, each in enumerate(self.passes) if each.name == name]
        for i in reversed(gone):
            self.removed[name], self.place = self.passes.pop(i), i
        self.changed |= bool(gone)
        return bool(gone)


def _remove(stages: Iterable[_Stage], name: str) -> None:
    known = {each.name for stage in stages for each in stage.passes}
    if not any([stage.remove(name) for stage in stages]):
        raise unknown_name("no stage runs pass", name, known)


def split_weights(passes: Passes) -> tuple[str, Passes]:
    """Splits a pipeline after its last pass with `takes_weights`. Returns the passes up to it as
    text, and the passes for the rest of the compilation.

    The first part is "" if no pass takes weights; the second is "default" if no pass is left for
    it.
    """
    if is_default(passes):
        return "", passes
    items = Pipeline(passes).passes if isinstance(passes, str) else passes.passes
    count = max((i for i, item in enumerate(items, 1) if item.takes_weights), default=0)
    if not count:
        return "", passes
    return str(Pipeline(items[:count])), str(Pipeline(items[count:])) or "default"
