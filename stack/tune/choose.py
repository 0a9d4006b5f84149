"""Autotune schedules: each group with several candidates gets the fastest one on this device.

Every distinct group becomes a program, timed in a child process (`stack.tune.worker`). A candidate
that crashes or hangs fails only itself, not the parent. Results are cached by device and versions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import UsageError
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend
from stack.run.cache import Cache, cache_folder
from stack.schedule import ScheduleChoice, schedules_of, with_schedules
from stack.target import Target
from stack.tune.child import Child

FORMAT = "schedules/1"


@dataclass
class Trial:
    """The measurements of one group.

    Attributes:
        program: a function that computes only this group.
        schedules: candidates, in the order of the cost model.
        choice: the candidates with expected and, at the end, measured times.
        seconds: by candidate; None if it failed.
        problems: error texts by candidate.
        is_known: True if the result came from the cache.
    """

    name: str
    program: Func
    schedules: tuple[str, ...]
    choice: ScheduleChoice | None = None
    seconds: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    is_known: bool = False

    @property
    def best(self) -> str:
        """The fastest candidate, or the cost model's first if none ran."""
        return min(self.schedules, key=lambda t: self.seconds.get(t) or math.inf)

    def __str__(self) -> str:
        """Formats a line for the record: candidates, fastest first."""
        ran = {t: s for t, s in self.seconds.items() if s is not None}
        shown = [f"{t}: {s * 1e6:.1f} us" for t, s in sorted(ran.items(), key=lambda p: p[1])]
        shown += [f"{t}: {why}" for t, why in self.problems.items()]
        where = "from the cache" if self.is_known else "measured"
        return f"{self.name}: {where}; {'; '.join(shown)}"


def choose(
    func: Func,
    backend: Backend,
    options: dict[str, Any],
    cache: Cache | None = None,
    target: Target | None = None,
    schedules: Mapping[str, str] | None = None,
) -> tuple[Func, list[Trial]]:
    """Returns the function with one schedule on each group, and the measurements.

    Args:
        func: after the stage that forms groups.
        backend: proposes candidates (`Lowering.proposal`), lowers and runs them.
        options: of the backend; `device` selects the device.
        cache: the user's cache if None.
        target: the machine that schedules are proposed for.
        schedules: fixed schedules by group name, which are not measured.
    """
    proposal, identify = backend.lowering.proposal, backend.machine.identify
    if not proposal or identify is None:
        raise UsageError(f"backend {backend.name!r} has no schedules to choose from")
    proposal_run = Pipeline(proposal).run(func, target=target, schedules=schedules)
    proposed = proposal_run.func
    choices = {c.group: c for record in proposal_run.records for c in record.choices}
    groups = [n for n in proposed.body.nodes if len(schedules_of(n)) > 1]
    trials: dict[str, Trial] = {}
    texts: dict[Node, str] = {}
    for node in groups:
        program = alone(node)
        texts[node] = text = str(program)
        name = proposed.body.names.get(node, node.op)
        trial = Trial(f"%{name}", program, schedules_of(node), choices.get(name))
        trials.setdefault(text, trial)
    here = cache if cache is not None else Cache(cache_folder() / "schedules")
    identity = identify(options)
    missing = [t for text, t in trials.items() if not _recall(t, here, _key(text, identity))]
    if missing:
        _measure(missing, backend, options)
        for text, trial in trials.items():
            if trial in missing:
                _keep(trial, here, _key(text, identity))
    for trial in trials.values():
        if trial.choice is not None:
            trial.choice = trial.choice.measured(trial.seconds, trial.problems)
    changed = {n: Replacement(with_schedules(n, (trials[texts[n]].best,))) for n in groups}
    body: Block = replace(proposed.body, changed) if changed else proposed.body
    return Func(func.name, body, func.level), list(trials.values())


def alone(node: Node) -> Func:
    """Returns a function that computes only this node. Its operands become parameters, except
    constants, which stay.
    """
    b = Builder()
    params: dict[Node, Node] = {}
    for arg in node.args:
        if arg.op != "const" and arg not in params:
            params[arg] = param(f"x{len(params)}", arg.type)
    args = [params.get(a, a) for a in node.args]
    again = Node(node.op, args, node.attrs, node.type, node.blocks)
    return b.func("group", list(params.values()), [again])


def candidates(trial: Trial) -> list[Func]:
    """Returns the program of a trial once for each of its schedules, with only that schedule on its
    group.
    """
    (node,) = (n for n in trial.program.body.nodes if "schedule" in n.attrs)
    made: list[Func] = []
    for text in trial.schedules:
        body = replace(trial.program.body, {node: Replacement(with_schedules(node, (text,)))})
        made.append(Func(trial.program.name, body, trial.program.level))
    return made


def _measure(trials: Sequence[Trial], backend: Backend, options: dict[str, Any]) -> None:
    """Measures every schedule of every trial in a child process, and stores times and errors in the
    trials. If a child ends early, a new one resumes after the failure.
    """
    todo = [
        (trial, text, f) for trial in trials for text, f in zip(trial.schedules, candidates(trial))
    ]
    while todo:
        with Child(backend.name, options, [str(f) for _, _, f in todo]) as child:
            done = 0
            for reply in child.replies():
                trial, text, _ = todo[done]
                trial.seconds[text] = reply.seconds
                if reply.problem:
                    trial.problems[text] = reply.problem
                done += 1
        if done < len(todo):
            trial, text, _ = todo[done]
            trial.seconds[text] = None
            trial.problems[text] = child.problem
            done += 1
        todo = todo[done:]


def _key(text: str, identity: str) -> str:
    return hashlib.sha256(f"{FORMAT}\n{identity}\n{text}".encode()).hexdigest()


def _recall(trial: Trial, cache: Cache, key: str) -> bool:
    stored = cache.get(key)
    if stored is None:
        return False
    known = json.loads(stored)
    trial.seconds, trial.problems = known["seconds"], known["problems"]
    trial.is_known = True
    return True


def _keep(trial: Trial, cache: Cache, key: str) -> None:
    if any(s is not None for s in trial.seconds.values()):
        body = json.dumps({"seconds": trial.seconds, "problems": trial.problems})
        cache.put(key, body.encode())
