"""Groups that name several tiles get the one that is fastest here.

Every distinct group is a program of its own, tried by a child process (`stack.tune.worker`): one
that faults or hangs costs its candidate, not the parent. Results are kept in the cache for the
device and the versions that they hold for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import UsageError
from stack.ir.builder import Builder, param
from stack.ir.node import Block, Func, Node
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend
from stack.run.cache import Cache, cache_folder
from stack.target import Target
from stack.tune.child import Child

FORMAT = "tiles/1"


@dataclass
class Trial:
    """One group and what was measured of it.

    Attributes:
        program: a function that does nothing else.
        tiles: candidates, in the order that the model puts them.
        seconds: by candidate; None where it failed.
        problems: why, by candidate.
        is_known: whether the cache had it.
    """

    name: str
    program: Func
    tiles: tuple[str, ...]
    seconds: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    is_known: bool = False

    @property
    def best(self) -> str:
        """The fastest candidate; the model's where none ran."""
        return min(self.tiles, key=lambda t: self.seconds.get(t) or math.inf)

    def __str__(self) -> str:
        """A line for the record: candidates, fastest first."""
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
) -> tuple[Func, list[Trial]]:
    """The function with one tile on each group, and what was measured.

    Args:
        func: after the stage that forms groups.
        backend: names the candidates (`Lowering.proposal`), lowers and runs them.
        options: of the backend; `device` says where.
        cache: None takes the user's.
        target: the machine that tiles are proposed for.
    """
    proposal, identify = backend.lowering.proposal, backend.machine.identify
    if not proposal or identify is None:
        raise UsageError(f"backend {backend.name!r} has no tiles to choose from")
    proposed = Pipeline(proposal).run(func, target=target).func
    groups = [n for n in proposed.body.nodes if len(n.attrs.get("tiles") or ()) > 1]
    trials: dict[str, Trial] = {}
    texts: dict[Node, str] = {}
    for node in groups:
        program = alone(node)
        texts[node] = text = str(program)
        name = f"%{proposed.body.names.get(node, node.op)}"
        trials.setdefault(text, Trial(name, program, tuple(node.attrs["tiles"])))
    here = cache if cache is not None else Cache(cache_folder() / "tiles")
    identity = identify(options)
    missing = [t for text, t in trials.items() if not _recall(t, here, _key(text, identity))]
    if missing:
        _measure(missing, backend, options)
        for text, trial in trials.items():
            if trial in missing:
                _keep(trial, here, _key(text, identity))
    changed = {n: Replacement(with_tiles(n, (trials[texts[n]].best,))) for n in groups}
    body: Block = replace(proposed.body, changed) if changed else proposed.body
    return Func(func.name, body, func.level), list(trials.values())


def alone(node: Node) -> Func:
    """A function that only does what a node does; constants stay in it."""
    b = Builder()
    params: dict[Node, Node] = {}
    for arg in node.args:
        if arg.op != "const" and arg not in params:
            params[arg] = param(f"x{len(params)}", arg.type)
    args = [params.get(a, a) for a in node.args]
    again = Node(node.op, args, node.attrs, node.type, node.blocks)
    return b.func("group", list(params.values()), [again])


def with_tiles(node: Node, tiles: Sequence[str]) -> Node:
    """The node with other tiles."""
    attrs = {**node.attrs, "tiles": tuple(tiles)}
    return Node(node.op, node.args, attrs, node.type, node.blocks)


def candidates(trial: Trial) -> list[Func]:
    """The program of a trial with each of its tiles."""
    (node,) = (n for n in trial.program.body.nodes if "tiles" in n.attrs)
    made: list[Func] = []
    for tile in trial.tiles:
        body = replace(trial.program.body, {node: Replacement(with_tiles(node, (tile,)))})
        made.append(Func(trial.program.name, body, trial.program.level))
    return made


def _measure(trials: Sequence[Trial], backend: Backend, options: dict[str, Any]) -> None:
    """Fill in the seconds. A child that ends early is started again behind what ended it."""
    todo = [(trial, tile, f) for trial in trials for tile, f in zip(trial.tiles, candidates(trial))]
    while todo:
        with Child(backend.name, options, [str(f) for _, _, f in todo]) as child:
            done = 0
            for reply in child.replies():
                trial, tile, _ = todo[done]
                trial.seconds[tile] = reply.seconds
                if reply.problem:
                    trial.problems[tile] = reply.problem
                done += 1
        if done < len(todo):
            trial, tile, _ = todo[done]
            trial.seconds[tile] = None
            trial.problems[tile] = child.problem
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
