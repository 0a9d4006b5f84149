"""Splits a program into a part that depends only on its weights and a part that runs in every call.

Pass `freeze` moves computation on weights into a call with `once`, and later passes may add steps
that read only its results. Here all of these become a program of their own; the rest takes its
results as parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stack.errors import UsageError
from stack.ir.builder import Builder, param, results_of
from stack.ir.func import Func
from stack.ir.node import Node, topological, unique_name
from stack.ir.traits import behind, is_input, is_known, runs_once
from stack.rewrite.engine import copied, inline_block
from stack.rewrite.group import bytes_of
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import AddressProgram, Executable, FrozenValues, Kernels
from stack.run.pipeline_edits import Stages

STAGE = "frozen"
AFTER = "laid-out"  # before streams and groups are formed, so that they see prepared weights
LAST = "memory"  # plans memory, in each part
OUT = "hoist"  # moves computation on weights out of loops
PLACED = f"inline,{LAST}"
PARTS = ("prepared", "called")

Text = str | Callable[[], str]
Held = tuple[Sequence[np.ndarray], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Parts:
    """A lowered function cut into a part that runs once for given weights and a part that runs in
    every call.

    Attributes:
        prepare: computes the cached values from weights.
        call: computes the results from the cached values and parameters of the whole.
        weights: numbers of the whole's parameters that `prepare` takes.
        given: numbers of the whole's parameters that `call` takes.
    """

    prepare: Func
    call: Func
    weights: tuple[int, ...]
    given: tuple[int, ...]


def stages_with(forming: Stages, lowering: Stages, weights: Sequence[str]) -> tuple[Stages, Stages]:
    """Returns two lists of stages for a program with constant weights: the stages that form groups,
    with pass `freeze` added, and the stages that lower groups, without memory planning. Memory is
    planned later, in each of the two parts.

    Raises UsageError if a user's pipeline replaces the stages that form groups.
    """
    names = [name for name, _ in forming]
    if AFTER not in names:
        raise UsageError(f"freeze comes after stage {AFTER!r}; the stages are {', '.join(names)}")
    at = names.index(AFTER) + 1
    stage = (STAGE, f"freeze{{weights=[{','.join(weights)}]}}")
    placeless = [
        (name, Pipeline([OUT if p.name == LAST else p for p in Pipeline(spec).passes]))
        for name, spec in lowering
    ]
    return [*forming[:at], stage, *forming[at:]], placeless


def cut(func: Func) -> Parts | None:
    """Cuts a lowered function into the part that depends only on weights and the part that runs in
    every call. None if nothing can be computed from weights alone.
    """
    crossing = _crossing(func)
    before, after = Builder(), Builder()
    known = {p: p for p in func.params}
    inside = dict(known)
    for call in filter(runs_once, func.nodes):
        args = copied(func.body, call.args, inside, before)
        inside |= zip(results_of(call), inline_block(call.blocks[0], args, before), strict=True)
    values = copied(func.body, crossing, inside, before)
    found = dict(zip(crossing, values, strict=True))
    kept = {n: v for n, v in found.items() if not (is_input(v) or is_known(v))}
    own = dict(zip(kept, _params(func, kept), strict=True))
    results = copied(func.body, func.results, {**known, **found, **own}, after)
    weights, given = _read(func, kept.values()), _read(func, results)
    taken = [*own.values(), *(func.params[i] for i in given)]
    called = after.func(func.name, taken, results, func.level)
    if not kept:
        return None
    prepare = before.func(
        f"{func.name}_{STAGE}", [func.params[i] for i in weights], list(kept.values()), func.level
    )
    return Parts(prepare, called, weights, given)


def _crossing(func: Func) -> list[Node]:
    """The values that pass from the part that depends only on weights to the part of every call:
    computed from calls with `once` alone, and read by other nodes or returned.
    """
    made: set[Node] = set()
    read: dict[Node, None] = {}
    for node in func.nodes:
        if runs_once(node) or (node.args and all(a in made or is_known(a) for a in node.args)):
            made.add(node)
        else:
            read.update((behind(a), None) for a in node.args)
    read.update((behind(r), None) for r in func.results)
    return [n for n in read if n in made]


def _params(func: Func, values: Iterable[Node]) -> list[Node]:
    """Returns a new parameter for each value, of its type and with its name, made unique among the
    parameters of `func`.
    """
    taken = {str(p.attrs["name"]) for p in func.params}
    names = [func.body.names.get(v, "kept") for v in values]
    return [param(unique_name(n, taken, {}), v.type) for n, v in zip(names, values, strict=True)]


def _read(func: Func, values: Iterable[Node]) -> tuple[int, ...]:
    """Returns the indices of the parameters of `func` on which some of the values depend."""
    needed = set(topological(values))
    return tuple(i for i, p in enumerate(func.params) if p in needed)


def build_parts(
    func: Func, make: Callable[[Func], Executable], walk: Callable[[Func, Stages], Func]
) -> Executable:
    """Compiles a lowered function in two parts.

    Args:
        make: the backend's compiler.
        walk: runs stages on a function, and records them.
    """
    parts = cut(func)
    if parts is None:
        return make(walk(func, [(PARTS[1], PLACED)]))
    first, then = (
        make(walk(part, [(name, PLACED)]))
        for name, part in zip(PARTS, (parts.prepare, parts.call), strict=True)
    )
    size = sum(bytes_of(r) for r in parts.prepare.results)

    def call(kept: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return then.run([*kept, *(arrays[i] for i in parts.given)])

    def prepare(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return first.run([arrays[i] for i in parts.weights])

    def prepared(arrays: Sequence[np.ndarray]) -> Held:
        return prepare(arrays), arrays

    def called(held: Held) -> list[np.ndarray]:
        return call(*held)

    def both(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return call(prepare(arrays), arrays)

    def profile(arrays: Sequence[np.ndarray]) -> list[float]:
        assert first.profile is not None
        assert then.profile is not None
        weights = [arrays[i] for i in parts.weights]
        given = [*first.run(weights), *(arrays[i] for i in parts.given)]
        return [*first.profile(weights), *then.profile(given)]

    return replace(
        then,
        run=both,
        prepare=prepared,
        call=called,
        profile=profile if first.profile and then.profile else None,
        kernels=Kernels(lambda: [*first.kernels, *then.kernels]),
        artifacts={k: _joined(first.artifacts.get(k, ""), v) for k, v in then.artifacts.items()},
        by_address=lambda: None,
        drain=None,
        frozen=FrozenValues(
            parts.weights,
            prepare,
            call,
            lambda: _by_address(then, parts, func),
            size,
            parts.given,
        ),
    )


def _by_address(then: Executable, parts: Parts, func: Func) -> AddressProgram | None:
    """The program of the second part for calls by addresses: of the cached values, of all
    parameters of the whole function, and of results. None if the part cannot be called by
    addresses.
    """
    program = then.by_address()
    if program is None:
        return None
    kept = len(parts.prepare.results)
    every = kept + len(func.params)
    results = range(every, every + len(func.results))
    taken = [*range(kept), *(kept + i for i in parts.given), *results]

    def call(addresses: Sequence[int]) -> None:
        program.call([addresses[i] for i in taken])

    return AddressProgram(call, program.shapes, program.frees)


def _joined(first: Text, then: Text) -> Text:
    return lambda: "".join(t if isinstance(t, str) else t() for t in (first, then))
