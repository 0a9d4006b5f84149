"""Steps of a schedule: a step is one primitive with its arguments.

A schedule is a list of steps, separated by semicolons or line breaks:

    split r 1024; vectorize r.1; bind i grid; launch 2

A step is the name of a primitive and its arguments in order. An argument with a default may be left
out, or written as `name=value`. Text after `#` is a comment.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_type_hints

from stack.errors import UsageError, unknown_name
from stack.ir.node import Node
from stack.passes.steps.edit import Edit
from stack.target import Cpu, Gpu, Target

STEPS: dict[str, type[Step]] = {}
NEST = "the plain loop nest"
Shown = list[tuple[str, str, Node]]  # text of a step, its reason, the kernel after it


@dataclass(frozen=True)
class Step(ABC):
    """One rewrite of the loop nest of a kernel.

    A primitive is a frozen dataclass that derives from this class. Its fields are its arguments. A
    field `axis` names a loop variable.

    Attributes:
        name: the name of the primitive: `class Split(Step, name="split")`.
        only: the only kind of machine that has it, likewise; None if CPUs and GPUs do.
        why: the reason that the policy gives; not a part of the text.
    """

    name: ClassVar[str] = ""
    only: ClassVar[type[Cpu] | type[Gpu] | None] = None
    why: str = dataclasses.field(default="", compare=False, kw_only=True)

    def __init_subclass__(cls, name: str = "", only: type[Cpu] | type[Gpu] | None = None) -> None:
        if name:
            cls.name, cls.only = name, only
            STEPS[name] = cls

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        """Returns the rule of legality that the step would break on a kernel, with the number that
        breaks it; "" if the step is legal.
        """
        if target is not None and self.only is not None and not isinstance(target, self.only):
            own, other = ("GPU", "CPU") if self.only is Gpu else ("CPU", "GPU")
            return f"{self.name} is for {own}s, and the target is a {other}"
        return next(filter(None, self.broken(kernel, target)), "")

    @abstractmethod
    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        """Yields each rule of legality that the step would break on a kernel, or "" for a rule that
        it keeps. What follows a broken rule is not run, and may rely on it.
        """

    @abstractmethod
    def apply(self, kernel: Node) -> Node:
        """Applies the step, which must be legal. Returns the kernel after it."""

    def because(self, why: str) -> Self:
        """Returns the same step with a reason."""
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


@dataclass(frozen=True)
class LoopStep(Step):
    """A step that replaces each loop over an axis by itself."""

    axis: str

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        return edit.change_loops(self.axis, lambda _, loop: self.change(edit, loop))

    @abstractmethod
    def change(self, edit: Edit, loop: Node) -> Node | list[Node]:
        """Returns what replaces a loop over the axis: a node, or a value for each of its results.
        Loops inside of it are replaced already.
        """


class IllegalStep(UsageError):
    """The error for a step that is not legal.

    Attributes:
        number: the position of the step in its list, from 1.
        step: the step.
        rule: the rule that the kernel breaks.
    """

    def __init__(self, number: int, step: Step, rule: str) -> None:
        super().__init__(f"step {number}, `{step}`: {rule}")
        self.number, self.step, self.rule = number, step, rule


def parse_steps(text: str) -> list[Step]:
    """Parses the text of a list of steps. Raises UsageError, which names the step and the word, if
    a step is unknown or an argument is wrong.
    """
    found: list[Step] = []
    for line in re.split("[;\n]", text):
        words = line.partition("#")[0].split()
        if words:
            found.append(_parsed(words, line.strip()))
    return found


def _parsed(words: Sequence[str], line: str) -> Step:
    name, *arguments = words
    if name not in STEPS:
        raise unknown_name(f"step {line!r}: there is no primitive", name, STEPS)
    made = STEPS[name]
    types, fields = get_type_hints(made), _arguments(made)
    values: dict[str, Any] = {}
    positional = iter(fields)
    for word in arguments:
        key, equals, value = word.partition("=")
        field = (
            next((f for f in fields if f.name == key), None) if equals else next(positional, None)
        )
        if field is None or field.name in values:
            raise UsageError(f"step {line!r}: unexpected argument {word!r}; write `{_usage(made)}`")
        given = value if equals else word
        if types[field.name] is int and not re.fullmatch(r"-?[0-9]{1,18}", given):  # 64 bits
            wrong = f"{field.name} is a whole number, not {given[:40]!r}"
            raise UsageError(f"step {line[:80]!r}: {wrong}")
        values[field.name] = types[field.name](given)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise UsageError(f"step {line!r}: {missing[0]} is missing; write `{_usage(made)}`")
    return made(**values)


def _arguments(made: type[Step]) -> list[dataclasses.Field[Any]]:
    """The fields of a primitive that are arguments, in the order of the text."""
    return [f for f in dataclasses.fields(made) if not f.kw_only]


def _usage(made: type[Step]) -> str:
    words = [made.name]
    for f in _arguments(made):
        is_needed = f.default is dataclasses.MISSING
        words.append(f.name.upper() if is_needed else f"[{f.name}={f.default}]")
    return " ".join(words)


class LoweredKernel:
    """A kernel that is being lowered, and the steps applied to it so far.

    Attributes:
        kernel: the kernel after these steps.
        target: the target of the kernel; None applies steps that any target may refuse.
        done: for each step its text, its reason and the kernel after it; the nest comes first.
    """

    def __init__(self, nest: Node, target: Target | None) -> None:
        self.kernel, self.target = nest, target
        self.done: Shown = [(NEST, "", nest)]

    def take(self, *steps: Step) -> None:
        """Applies steps in order. Raises IllegalStep at the first one that is not legal."""
        for step in steps:
            if not self.may(step):
                why = step.why_not(self.kernel, self.target)
                raise IllegalStep(len(self.done), step, why)

    def may(self, step: Step) -> bool:
        """Applies a step if it is legal for the kernel. Returns whether it is."""
        if step.why_not(self.kernel, self.target):
            return False
        self.kernel = step.apply(self.kernel)
        self.done.append((str(step), step.why, self.kernel))
        return True


def run_steps(kernel: Node, steps: Sequence[Step], target: Target | None = None) -> Node:
    """Applies steps to a kernel. Raises IllegalStep at the first one that is not legal."""
    made = LoweredKernel(kernel, target)
    made.take(*steps)
    return made.kernel
