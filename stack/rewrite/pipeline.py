"""The pass manager: the only code that runs passes. It verifies, times and records each one."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import stack.plugins as plugins
from stack.cpython import undisturbed
from stack.errors import UsageError, VerifyError, unknown_name
from stack.imports import import_named, importable
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import unsharded
from stack.ir.verifier import verify as verify_func
from stack.phases import phase
from stack.rewrite.blame import first_wrong
from stack.rewrite.check import EXACT, CheckError, Inexact
from stack.rewrite.log import FormedGroup, Fuel, Log, Miss, Note, RefusedFusion, Rewrite
from stack.rewrite.passes import Pass, build
from stack.rewrite.truth import Truth
from stack.schedule import ScheduleChoice
from stack.target import Target

_TEXT = r"\"(?:[^\"\\]|\\.)*\""
_VALUE = rf"{_TEXT}|[^\s{{}}\[\],=\"]+"
_OPTION = re.compile(rf"\s*({_VALUE})\s*=\s*({_VALUE}|\[(?:{_TEXT}|[^\"\]])*\])\s*(?:,|$)")
_PASS = re.compile(rf"\s*({_VALUE})\s*(?:\{{((?:{_TEXT}|[^\"{{}}])*)\}}\s*)?(?:,|$)")


@dataclass(frozen=True)
class Record:
    """The record of one pass: the function before and after it, its rewrites and notes. `name` is
    the pass with its options, as in the text of a pipeline. `idle` is why it was skipped, "" if it
    ran.
    """

    name: str
    before: Func
    after: Func
    milliseconds: float
    rewrites: tuple[Rewrite, ...] = ()
    misses: tuple[Miss, ...] = ()
    formed: tuple[FormedGroup, ...] = ()
    refused: tuple[RefusedFusion, ...] = ()
    remarks: tuple[Note, ...] = ()
    choices: tuple[ScheduleChoice, ...] = ()
    inexact: Inexact = EXACT  # how far its rules may change results
    error: float | None = None  # largest relative error of the numerical check, None if not run
    idle: str = ""

    @property
    def changed(self) -> bool:
        return self.after is not self.before

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the pass as text."""
        return tuple(str(remark) for remark in self.remarks)

    @property
    def by_rule(self) -> Counter[str]:
        """Number of applications of each rule."""
        return Counter(r.rule for r in self.rewrites)

    def __str__(self) -> str:
        if self.idle:
            return f"{self.name}: skipped, {self.idle}"
        rules = ", ".join(f"{rule} x{n}" for rule, n in self.by_rule.most_common())
        state = "changed" if self.changed else "no change"
        text = f"{self.name}: {state}, {self.milliseconds:.1f} ms"
        return f"{text}; {rules}" if rules else text


@dataclass(frozen=True)
class Result:
    """The function at the end of a pipeline, and a record of every pass."""

    func: Func
    records: tuple[Record, ...] = ()

    @property
    def inexact(self) -> Inexact:
        """The difference from the original results that is allowed after all rewrite rules that
        were applied.
        """
        found = EXACT
        for record in self.records:
            if record.inexact is not EXACT:
                found |= record.inexact
        return found


@dataclass(frozen=True, init=False)
class Pipeline:
    """Passes in order: `Pipeline("canonicalize,fuse{max_inputs=8}")`, or a list of passes.

    Both forms make equal objects. `str` returns the text form.
    """

    passes: tuple[Pass, ...] = field()

    def __init__(self, passes: str | Sequence[Pass | str] | Pipeline = ()) -> None:
        if isinstance(passes, Pipeline):
            passes = passes.passes
        items = parse_pipeline(passes) if isinstance(passes, str) else list(passes)
        flat: list[Pass] = []
        for item in items:
            flat.extend(parse_pipeline(item) if isinstance(item, str) else [item])
        object.__setattr__(self, "passes", tuple(flat))

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    @property
    def text(self) -> str:
        """Like `str`, with `module:Class` for passes that are not installed, so that it can be
        parsed back.
        """
        return ",".join(f"{_spelled(type(p))}{str(p).removeprefix(p.name)}" for p in self.passes)

    @property
    def takes_schedules(self) -> bool:
        """True if a pass uses schedules that a user gives."""
        return any(item.takes_schedules for item in self.passes)

    @undisturbed
    def run(
        self,
        func: Func,
        *,
        verify: bool = True,
        check: bool = False,
        fuel: Fuel | int | None = None,
        on_pass: Callable[[Record], None] | None = None,
        dump_dir: str | Path | None = None,
        only_changed: bool = True,
        verbose: bool = False,
        target: Target | None = None,
        schedules: Mapping[str, str] | None = None,
        on_kernel: Callable[[Node], object] | None = None,
    ) -> Result:
        """Runs every pass that may find something to do, see `Pass.idle`.

        Args:
            verify: check the IR after every pass; an error names the pass.
            check: also interpret before and after on inputs of all kinds, and compare; see
                `stack.rewrite.truth`.
            fuel: maximum number of rewrites over the whole pipeline.
            on_pass: called with every record as soon as the pass is done.
            dump_dir: write `NN_name.ir` there after every pass, and the input as `00_input.ir`.
            only_changed: skip passes in the dump that changed nothing.
            verbose: also record near matches.
            target: the machine to lower for. None is the reference of its kind, so that a bare
                pipeline gives the same result on every machine.
            schedules: schedules by names of groups, for pass `schedule`; see
                `stack.schedule.user_schedules`.
            on_kernel: called with every kernel as soon as a pass made it.

        Raises:
            UsageError: schedules are given, but no pass takes them.
            VerifyError: a pass broke the IR.
            CheckError: a pass changed the results of the function.
        """
        if schedules and not self.takes_schedules:
            raise UsageError(
                f"schedules are for pass 'schedule', which is not in {self}: put it before the"
                " pass that makes kernels"
            )
        tank = fuel if isinstance(fuel, Fuel) else Fuel(fuel)
        folder = Path(dump_dir) if dump_dir is not None else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "00_input.ir").write_text(str(func), encoding="utf-8")
        truth = Truth(func) if check else None
        records: list[Record] = []
        for number, item in enumerate(self.passes, 1):
            log = Log(verbose=verbose, fuel=tank, target=target, schedules=schedules or {})
            log.on_kernel = on_kernel
            record = _run_one(item, func, log, verify, truth)
            func = record.after
            records.append(record)
            if folder is not None and (record.changed or not only_changed):
                path = folder / f"{number:02}_{item.name}.ir"
                path.write_text(str(func), encoding="utf-8")
            if on_pass is not None:
                on_pass(record)
        return Result(func, tuple(records))


def _spelled(cls: type[Pass]) -> str:
    """The name of a pass class in the text of a pipeline: its installed name if that finds this
    class, else `module:Class`.
    """
    known = cls.name in plugins.names("stack.passes")
    if known and plugins.load("stack.passes", cls.name) is cls:
        return cls.name
    return f"{importable(cls.__module__)}:{cls.__qualname__}"


def _run_one(item: Pass, func: Func, log: Log, verify: bool, truth: Truth | None) -> Record:
    idle = "" if log.schedules and item.takes_schedules else item.idle(func)
    if idle:
        return Record(str(item), func, func, 0.0, idle=idle)
    start = time.perf_counter()
    try:
        with phase(f"pass {item.name}"):
            after = item.run(func, log)
        if not isinstance(after, Func):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"it returns {after!r:.40}, not a Func")
    except VerifyError as error:
        raise error.found_after(str(item)) from error
    except Exception as error:
        error.add_note(f"in pass {str(item)!r}")
        raise
    elapsed = (time.perf_counter() - start) * 1000
    if verify and after is not func:
        _verify(item, func, after)
    error = _checked(item, func, after, log, truth) if truth and after is not func else None
    return Record(
        str(item),
        func,
        after,
        elapsed,
        tuple(log.rewrites),
        tuple(log.misses),
        tuple(log.formed),
        tuple(log.refused),
        tuple(log.notes),
        tuple(log.choices),
        log.inexact,
        error,
    )


def _checked(item: Pass, before: Func, after: Func, log: Log, truth: Truth) -> float | None:
    """Returns the largest error of the results after a pass; None if there are no inputs to check,
    or if the pass changed the level of the function.

    Raises a CheckError that names the pass and the first wrong rewrite if an error is too large.
    """
    truth.allow(log.inexact)
    if not truth.kinds or after.level != truth.func.level:
        return None
    error, said = truth.compare(after)
    if not said:
        return error
    wrong = CheckError(f"after pass {str(item)!r}: {said}, in @{after.name}")
    blame = first_wrong(item, before, truth.problem, log.target)
    if blame is not None:
        wrong.add_note(str(blame))
    raise wrong


@phase("verify")
def _verify(item: Pass, before: Func, after: Func) -> None:
    try:
        verify_func(after)
    except VerifyError as error:
        raise error.found_after(str(item)) from error
    for what, old, new in (
        ("parameters", before.params, after.params),
        ("results", before.results, after.results),
    ):
        if [n.type for n in old] == [n.type for n in new]:
            continue
        if after.level != before.level or (before.meshes and not after.meshes):
            return  # a pass that lowers to another level or partitions may change the signature
        then, now = (", ".join(str(unsharded(n.type)) for n in nodes) for nodes in (old, new))
        raise VerifyError(
            f"the {what} of @{after.name} were ({then}) and are now ({now})"
        ).found_after(str(item))


# ---- text


def register_pass(cls: type[Pass]) -> type[Pass]:
    """Decorator: makes a pass known by its name to pipelines of this process.

    Raises UsageError if the name is taken.
    """
    plugins.register("stack.passes", cls.name, cls)
    return cls


def find_pass(name: str) -> type[Pass]:
    """The class of a pass: by its installed name, or as `module:Class`, `file.py:Class`.

    Raises UsageError with the known names.
    """
    if ":" not in name:
        return plugins.load("stack.passes", name)
    left, _, attribute = name.rpartition(":")
    module = import_named(left)
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        passes = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Pass)]
        raise unknown_name(f"{left} has no pass", attribute, [n for n in passes if n != "Pass"])
    if not (isinstance(found, type) and issubclass(found, Pass)):
        raise UsageError(f"{name} is not a pass: it must derive from stack.Pass")
    return found


def parse_pipeline(text: str, defaults: Mapping[str, Pass] | None = None) -> list[Pass]:
    """Parses `name{option=value, ...},name`. Raises UsageError with the known names.

    Options that are not given are those of `defaults`, passes by name.
    """
    passes: list[Pass] = []
    left = text.strip()
    while left:
        found = _PASS.match(left)
        name, given = found.groups("") if found is not None else ("", "")
        if found is None or _OPTION.sub("", given).strip():
            form = "expected name{option=value, ...}"
            raise UsageError(f"pass pipeline {text!r}: cannot read {left!r}, {form}")
        cls = find_pass(name)
        options: dict[str, str | tuple[str, ...]] = {}
        for option, value in _OPTION.findall(given):
            is_list = value.startswith("[")
            options[option] = tuple(re.findall(_VALUE, value)) if is_list else value
        base = (defaults or {}).get(cls.name)
        passes.append(build(cls, options, base if type(base) is cls else None))
        left = left[found.end() :]
    return passes
