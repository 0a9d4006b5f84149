"""Checks a pass: verification, text round trip and numerical check, over graphs from frameworks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.rewrite.blame import first_wrong
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import Pipeline, Result
from stack.rewrite.truth import Arrays, Truth


class PassError(StackError):
    """A pass is wrong: names the problem, the function and the rewrite."""


@dataclass
class PassReport:
    """The effects of a pass on the functions that it was checked on.

    Attributes:
        functions: number of functions.
        changed: names of the functions that it changed.
        rules: number of applications of each rule.
        misses: number of near matches of each rule, with the reason.
    """

    functions: int = 0
    changed: list[str] = field(default_factory=list[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    misses: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def __str__(self) -> str:
        lines = [f"{len(self.changed)} of {self.functions} functions changed"]
        lines += [f"  {rule} applied {n} times" for rule, n in self.rules.most_common()]
        lines += [f"  {rule} x{n}: {why}" for (rule, why), n in self.misses.most_common(8)]
        return "\n".join(lines)


def captured_graphs() -> dict[str, Func]:
    """Small graphs as frontends import them: transformer blocks and others, from torch and JAX."""
    folder = files("stack.testing").joinpath("graphs")
    texts = sorted(folder.iterdir(), key=lambda file: file.name)
    return {f.name.removesuffix(".stack"): parse(f.read_text("utf-8")) for f in texts}


def problem_of(before: Func, after: Func) -> str:
    """Interprets both functions on inputs of all kinds; returns the first difference, or ""."""
    return Truth(before).problem(after)


def check_pass(
    one: Pass,
    functions: Iterable[Func] = (),
    *,
    first: str = "",
    graphs: bool = True,
    arguments: Mapping[str, Arrays] | None = None,
) -> PassReport:
    """Runs a pass on functions, and on `captured_graphs`, and checks the contract of passes.

    The result verifies. Its text parses back to itself. It computes the same results, on inputs of
    all kinds of `stack.rewrite.inputs.KINDS`. A second run changes nothing. Where the pipeline
    skips the pass, it would change nothing either.

    A rule that is inexact by design states how far: `@on("mul", inexact=stack.rewrite.WIDER)`, or
    `Inexact(error=1e-3)`; a pass without rules calls `log.allow`.

    Args:
        first: passes that run before it, such as "canonicalize,fuse".
        graphs: also check it on `captured_graphs`.
        arguments: arguments of some functions, by name, on which they are checked first.

    Raises:
        PassError: names the function, the first wrong rewrite, its node and source lines.
        VerifyError: from the pipeline.
    """
    report = PassReport()
    given = [(func.name, func) for func in functions]
    for name, func in [*given, *(captured_graphs().items() if graphs else ())]:
        ready = Pipeline(first).run(func).func
        result = Pipeline([one]).run(ready, verbose=True)
        (record,) = result.records
        report.functions += 1
        report.rules += record.by_rule
        report.misses.update((miss.rule, miss.reason) for miss in record.misses)
        if record.idle and one.run(ready, Log()) is not ready:
            raise PassError(f"{one} on {name}: it is skipped, but has work ({record.idle})")
        if record.changed:
            report.changed.append(name)
            _check(one, name, ready, result, (arguments or {}).get(name, ()))
    return report


def _check(one: Pass, name: str, before: Func, result: Result, given: Arrays) -> None:
    after = result.func
    if parse(str(after)) is not after:
        raise PassError(f"{one} on {name}: its result does not read back from its text")
    truth = Truth(before, given=given)
    truth.allow(result.inexact)
    problem = truth.problem(after)
    if problem:
        blame = first_wrong(one, before, truth.problem)
        raise PassError(f"{one} on {name}: {problem}" + (f"\n  {blame}" if blame else ""))
    again = Pipeline([one]).run(after).func
    if again is not after:
        raise PassError(f"{one} on {name}: doing it twice changes more")
