"""What a step of a schedule is: one primitive with its arguments, and the error where it may not.

A schedule is a list of steps, one a line or several between semicolons:

    split r 1024; vectorize r.1; bind i grid; launch 2

Each line begins with the name of a primitive, then its arguments in order; what has a default may
follow as `name=value`.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_type_hints

from stack.errors import UsageError
from stack.ir.node import Node
from stack.target import Cpu, Target

STEPS: dict[str, type[Step]] = {}


@dataclass(frozen=True)
class Step(ABC):
    """One rewrite of the loop nest of a kernel.

    A primitive is a frozen dataclass that derives from this one: its fields are its arguments. A
    field `axis` names the loop variable that it is about.

    Attributes:
        name: of the primitive.
        why: the reason of the policy that wrote it; no part of the text.
    """

    name: ClassVar[str] = ""
    why: str = dataclasses.field(default="", compare=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        STEPS[cls.name] = cls

    @abstractmethod
    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        """The rule that a kernel breaks, with the number; "" where the step is legal."""

    @abstractmethod
    def apply(self, kernel: Node) -> Node:
        """The kernel after the step, which is legal."""

    def because(self, why: str) -> Self:
        """The same step with a reason."""
        return dataclasses.replace(self, why=why)

    def __str__(self) -> str:
        words = [self.name]
        for f in _arguments(type(self)):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING:
                words.append(str(value))
            elif value != f.default:
                words.append(f"{f.name}={value}")
        return " ".join(words)


def why_no_gpu(step: Step, target: Target | None) -> str:
    """What stands against a step that only GPUs have; "" where the target may be one."""
    return f"{step.name} is for GPUs, and not for a CPU" if isinstance(target, Cpu) else ""


class IllegalStep(UsageError):
    """A step that a kernel does not allow.

    Attributes:
        number: of the step in its list, from 1.
        step: its text.
        rule: what stands against it.
    """

    def __init__(self, number: int, step: Step, rule: str) -> None:
        super().__init__(f"step {number}, `{step}`: {rule}")
        self.number, self.step, self.rule = number, step, rule


def parse_steps(text: str) -> list[Step]:
    """The steps of a text. Raises UsageError, which names what cannot be read."""
    found: list[Step] = []
    for line in re.split("[;\n]", text):
        words = line.partition("#")[0].split()
        if words:
            found.append(_parsed(words, line.strip()))
    return found


def _parsed(words: Sequence[str], line: str) -> Step:
    name, *given = words
    if name not in STEPS:
        known = ", ".join(sorted(STEPS))
        raise UsageError(f"step {line!r}: there is no primitive {name!r}; there are: {known}")
    made = STEPS[name]
    types, fields = get_type_hints(made), _arguments(made)
    values: dict[str, Any] = {}
    positional = iter(fields)
    for word in given:
        key, equals, value = word.partition("=")
        field = (
            next((f for f in fields if f.name == key), None) if equals else next(positional, None)
        )
        if field is None or field.name in values:
            raise UsageError(f"step {line!r}: {word!r} is too much; write `{_usage(made)}`")
        values[field.name] = _value(value if equals else word, types[field.name], line, field.name)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise UsageError(f"step {line!r}: {missing[0]} is missing; write `{_usage(made)}`")
    return made(**values)


def _arguments(made: type[Step]) -> list[dataclasses.Field[Any]]:
    """The fields that stand in the text of a step, in order."""
    return [f for f in dataclasses.fields(made) if not f.kw_only]


def _value(word: str, kind: Any, line: str, name: str) -> Any:
    if kind is str:
        return word
    if not re.fullmatch(r"-?\d+", word):
        raise UsageError(f"step {line!r}: {name} is a whole number, not {word!r}")
    return int(word)


def _usage(made: type[Step]) -> str:
    words = [made.name]
    for f in _arguments(made):
        is_needed = f.default is dataclasses.MISSING
        words.append(f.name.upper() if is_needed else f"[{f.name}={f.default}]")
    return " ".join(words)


def applied(
    kernel: Node, steps: Sequence[Step], target: Target | None = None
) -> Iterator[tuple[Step, Node]]:
    """Each step with the kernel after it. Raises IllegalStep at the first that is not legal."""
    for number, step in enumerate(steps, 1):
        why = step.why_not(kernel, target)
        if why:
            raise IllegalStep(number, step, why)
        kernel = step.apply(kernel)
        yield step, kernel


def run_steps(kernel: Node, steps: Sequence[Step], target: Target | None = None) -> Node:
    """The kernel after a list of steps. Raises IllegalStep."""
    for _, after in applied(kernel, steps, target):
        kernel = after
    return kernel


__all__ = ["STEPS", "IllegalStep", "Step", "applied", "parse_steps", "run_steps", "why_no_gpu"]
