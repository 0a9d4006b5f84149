"""Compiles a captured program to an executable, and records the stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import stack.plugins as plugins
from stack.errors import BackendMissing, UnsupportedOp, UsageError, unknown_name
from stack.ir.func import Func
from stack.ir.refusal import KernelRefused
from stack.phases import phase
from stack.releases import TESTED, warn_if_untested
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend, Executable, Kernels
from stack.run.coverage import walk
from stack.run.options import target_of
from stack.run.pipeline_edits import DEFAULT, LOWERING_STAGES, Passes, Stages, steer
from stack.run.record import Run, Stage, decided
from stack.run.retreat import without_refused
from stack.run.work import with_work
from stack.schedule import schedules_in
from stack.target import Target
from stack.wings import part, wing

DEFAULT_BACKEND = "mlir"
DEVICE_BACKEND = "triton"  # for arrays on a GPU
_SCANS = {"scan", "pad"}  # ops of scans; a tree of slices ends with pads

Made = TypeVar("Made")


def default_backend(device: str) -> str:
    """The name of the backend for arrays on a device."""
    return DEFAULT_BACKEND if device == "cpu" else DEVICE_BACKEND


def find_backend(name: str | None) -> Backend:
    """A backend that can run here. Raises BackendMissing, naming the extra or device."""
    backend: Backend = plugins.load("stack.backends", name or DEFAULT_BACKEND)
    need = backend.missing()
    if need is not None:
        raise BackendMissing(backend.name, need)
    if backend.name in TESTED:
        warn_if_untested(backend.name)
    return backend


def warm(name: str | None, options: Mapping[str, Any]) -> None:
    """Starts the worker processes of a backend, if it has some, so that they are ready when the
    capture of the program ends.
    """
    if name is None or name not in plugins.names("stack.backends"):
        return
    backend: Backend = plugins.load("stack.backends", name)
    start = backend.machine.warm
    if start is not None and backend.missing() is None:
        start(options)


def check_native(func: Func) -> None:
    """Raises UnsupportedOp for all ops that would fall back, with their source lines."""
    missing: dict[str, tuple[str, ...]] = {}
    for node in walk(func):
        if node.op == "opaque":
            name = str(node.attrs["target"])
            lines = func.body.locs.get(node, ())
            missing[name] = tuple(dict.fromkeys((*missing.get(name, ()), *lines)))
    if missing:
        hint = "without strict they run in the framework and are counted as fallbacks"
        raise UnsupportedOp(sorted(missing.items()), hint)


def stages_of(
    backend: Backend, passes: Passes = DEFAULT, rounds: bool = False
) -> tuple[Stages, Stages]:
    """Returns two lists of a backend's stages: those that form fusion groups, and those that lower
    groups to the level that the backend compiles.

    `passes`: changes to the stages, see `stack.run.pipeline_edits`, or a pipeline that replaces the
    first list.
    """
    stages: Stages = backend.lowering.stages
    if passes != DEFAULT:
        stages = steer(stages, passes)
    forming = [s for s in stages if s[0] not in LOWERING_STAGES]
    lowering = [s for s in stages if s[0] in LOWERING_STAGES]
    return ([("rounded", "rounding"), *forming] if rounds else forming), lowering


def operator_stage(func: Func, backend: Backend, passes: Passes, prefer: str = "cost") -> Stages:
    """Returns the stage that chooses the implementation of hosted operators and, on CUDA, of scans.
    Empty if the function has none, or if `passes` contains pass `hosted` already.

    Backends without hosted kernels, and peers, get the decomposition of an operator. Raises
    WingMissing for a function with operators, without their wing.
    """
    if "hosted" in str(passes):
        return ()
    asks = "custom" in func.body.ops
    if asks:
        wing("ops")
    scans = backend.lowering.hosts == "cuda" and "hosted" in plugins.names("stack.passes")
    if not asks and not (scans and _SCANS & func.body.ops):
        return ()
    options = f"{{device={backend.lowering.hosts or 'none'}, prefer={prefer}}}"
    return (("operators", f"hosted{options}"),)


def lower(
    func: Func,
    backend: Backend,
    run: Run,
    passes: Passes = DEFAULT,
    rounds: bool = False,
    target: Target | None = None,
    schedules: Mapping[str, str] | None = None,
) -> Func:
    """Lowers a tensor-level function to the level of the backend and records each stage.

    `rounds`: True if 16-bit floats are rounded after each op, see pass `rounding`. `target`: the
    machine to lower for; None is this machine. `schedules`: schedules of groups by name, see pass
    `schedule`.
    """
    forming, lowering = stages_of(backend, passes, rounds)
    stages = [*operator_stage(func, backend, passes), *forming, *lowering]
    if schedules:
        _check_taken(stages, schedules)
    return walk_stages(func, stages, run, target or target_of(backend, {}), schedules)


def build(
    func: Func,
    backend: Backend,
    run: Run,
    make: Callable[[Func], Made],
    passes: Passes = DEFAULT,
    tune: dict[str, Any] | None = None,
    rounds: bool = False,
    target: Target | None = None,
    hosted: str = "cost",
    schedules: Mapping[str, str] | None = None,
    after: str = "",
    weights: Sequence[str] | None = None,
) -> Made:
    """Lowers a function and compiles it with `make`, the backend's compiler; records each stage.

    Groups whose kernels the compiler rejects are computed in another way, see `stack.run.retreat`.

    Args:
        tune: options of the backend for measuring schedules of groups; None measures none.
        rounds: True if 16-bit floats are rounded after each op, see pass `rounding`.
        target: the machine to lower for; None is this machine.
        hosted: the implementation of hosted operators, see pass `hosted`.
        schedules: schedules of groups by name, see pass `schedule`.
        after: the last stage that the function has already passed.
        weights: parameters that do not change between calls, for pass `freeze`; None skips that
            pass. Memory is then planned for each part separately: `stack.calls.partial_evaluation`.
    """
    target = target or target_of(backend, {})
    forming, lowering = stages_of(backend, passes, rounds)
    first = operator_stage(func, backend, passes, hosted) if not after else ()
    if after:
        left = stages_after(after, [*forming, *lowering])
        forming = [s for s in left if s in forming]
        lowering = [s for s in left if s in lowering]
    if weights is not None:
        forming, lowering = part("calls", "freeze-stages")(forming, lowering, weights)
    if schedules:
        _check_taken(forming, schedules)
    groups = walk_stages(func, [*first, *forming], run, target, schedules)
    if tune is not None:
        groups = _tuned(groups, backend, run, tune, target, schedules)
    start = len(run.records)
    while True:
        try:
            lowered = walk_stages(groups, lowering, run, target)
            with phase("backend"):
                return make(lowered)
        except KernelRefused as refused:
            if not backend.lowering.retreat:
                raise
            lower = partial(walk_stages, stages=lowering, run=run, target=target)
            groups = without_refused(groups, refused, backend, run, start, lower, target)


def stages_after(name: str, stages: Stages) -> Stages:
    """The stages after a given one; after "imported" all. Raises UsageError with the names."""
    names = ["imported", *(stage for stage, _ in stages)]
    if name not in names:
        raise unknown_name("no stage to resume from", name, names)
    return stages[names.index(name) :]


def _check_taken(stages: Stages, schedules: Mapping[str, str]) -> None:
    if not any(Pipeline(spec).takes_schedules for _, spec in stages):
        raise UsageError(
            "no stage before kernel generation has pass 'schedule': nothing takes the schedules of"
            f" {', '.join(schedules)}"
        )


def walk_stages(
    func: Func,
    stages: Stages,
    run: Run,
    target: Target | None = None,
    schedules: Mapping[str, str] | None = None,
) -> Func:
    """Runs the pass pipeline of each stage on a function, one after the other, and adds each result
    to the record `run`, unless `run.known` has it. Returns the last function.
    """
    run.machine = target.name if target is not None else ""
    for name, spec in stages:
        start = time.perf_counter()
        pipeline = Pipeline(spec)
        spelled = spec if isinstance(spec, str) else pipeline.text
        if (name, spelled, func) not in run.known:
            given = schedules if schedules and pipeline.takes_schedules else None
            result = pipeline.run(
                func, verbose=True, target=target, schedules=given, on_kernel=run.on_kernel
            )
            run.known[name, spelled, func] = Stage(
                name,
                func=result.func,
                passes=spelled,
                changed=result.func is not func,
                ms=(time.perf_counter() - start) * 1e3,
                choices=[choice for record in result.records for choice in record.choices],
                decisions=decided(result.records),
                inexact=result.inexact,
            )
        run.records.append(run.known[name, spelled, func])
        func = run.records[-1].func or func
    return func


def _tuned(
    func: Func,
    backend: Backend,
    run: Run,
    options: dict[str, Any],
    target: Target | None,
    schedules: Mapping[str, str] | None,
) -> Func:
    start = time.perf_counter()
    chosen, trials = part("bench", "tune-choose")(
        func, backend, options, target=target, schedules=schedules
    )
    run.records.append(
        Stage(
            "tuned",
            func=chosen,
            changed=chosen is not func,
            ms=(time.perf_counter() - start) * 1e3,
            comments=[str(trial) for trial in trials],
            choices=[trial.choice for trial in trials if trial.choice is not None],
        )
    )
    return chosen


def compile_func(
    func: Func,
    backend: Backend | str | None = None,
    run: Run | None = None,
    passes: Passes = DEFAULT,
    options: dict[str, Any] | None = None,
    after: str = "",
) -> Executable:
    """Lowers a function without size symbols and compiles it. `run`, if given, records it.

    The executable takes and returns storage arrays (see `Executable.run`). `after` names the stage
    that the function is at, if it is not the first.

    Options are those of the backend, and:

    - `tune`: True measures schedules if the backend has a choice, at most eight for each distinct
      kernel, and caches the result.
    - `excess_precision`: False rounds 16-bit floats after each op, as eager frameworks do; by
      default kernels keep f32 between fused ops.
    - `target`: the machine to lower for, a name or a file; by default this machine.
    - `hosted`: "hand" or "generated" decides for all hosted operators, "cost" (the default) for
      each.
    - `schedule`: `NAME: SCHEDULE` for the groups of these names, or a file of such lines, see pass
      `schedule`.
    - `freeze`: True computes values that depend only on weights once, see `Executable.frozen`;
      `weights` are the names of these parameters.
    """
    if not isinstance(backend, Backend):
        backend = find_backend(backend)
    start = time.perf_counter()
    run = run if run is not None else Run(func.name, "", backend.name)
    given = dict(options or {})
    tune, excess = given.pop("tune", False), given.pop("excess_precision", True)
    hosted = given.pop("hosted", "cost")
    freeze, weights = given.pop("freeze", False), given.pop("weights", ())
    target = target_of(backend, given)
    if backend.machine.start is not None:
        run.on_kernel = partial(backend.machine.start, given)

    def compiled(func: Func) -> Executable:
        return backend.compile(func, given)

    def compiled_parts(func: Func) -> Executable:
        def lowered(part_of: Func, stages: Stages) -> Func:
            return walk_stages(part_of, stages, run, target)

        return part("calls", "freeze-parts")(func, compiled, lowered)

    executable = build(
        func,
        backend,
        run,
        compiled_parts if freeze else compiled,
        passes,
        given if tune else None,
        rounds=not excess,
        target=target,
        hosted=hosted,
        schedules=schedules_in(given) if "schedule" in given else None,
        after=after,
        weights=weights if freeze else None,
    )
    if backend.peer is None:
        kernels = executable.kernels
        executable.kernels = Kernels(lambda: with_work(kernels, run.functions))
    run.kernels, run.stepwise = executable.kernels, executable.stepwise
    run.add_texts(executable.artifacts)
    run.compile_s = time.perf_counter() - start
    return executable
