"""Reads the code of a rule: the ops and numbers that it names, and the instructions it runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, cast

from stack.ir.ops import OPS
from stack.rewrite.engine import Rule, Simple

SAME = 4  # programs that are kept for one path through a rule: some of them are dead ends
Place = tuple[CodeType, int]  # an instruction


def function_of(rule: Rule) -> FunctionType | None:
    """Returns the Python function of a rule; None if it is written in another way."""
    found: Any = rule.function if isinstance(rule, Simple) else type(rule).apply
    found = getattr(found, "__func__", found)
    return found if isinstance(found, FunctionType) else None


@dataclass(frozen=True)
class Words:
    """The names of ops and the numbers that the code of a rule contains."""

    ops: frozenset[str]
    numbers: tuple[float, ...]


def words_of(rule: Rule) -> Words:
    """Returns the ops and numbers that a rule names, also in functions of its folder that it
    calls.
    """
    found = list(_literals(function_of(rule), set()))
    numbers = [v for v in found if isinstance(v, int | float) and not isinstance(v, bool)]
    return Words(
        frozenset(v for v in found if isinstance(v, str) and v in OPS),
        tuple(dict.fromkeys(n for v in numbers for n in (v, v / 2))),
    )


def _literals(function: FunctionType | None, seen: set[CodeType]) -> Iterator[Any]:
    if function is None or function.__code__ in seen:
        return
    seen.add(function.__code__)
    codes = [function.__code__]
    for code in codes:
        codes.extend(c for c in code.co_consts if isinstance(c, CodeType))
        yield from _flat(code.co_consts)
        for name in code.co_names:
            yield name
            other = function.__globals__.get(name)
            if isinstance(other, FunctionType) and folder(other) == folder(function):
                yield from _literals(other, seen)
            else:
                yield from _flat((other,))


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | frozenset):
            yield from _flat(cast("Iterable[Any]", value))
        elif isinstance(value, str | int | float):
            yield value


def folder(function: FunctionType) -> str:
    """Returns the folder of the file that defines a function."""
    return str(Path(function.__code__.co_filename).parent)


@dataclass
class Branches:
    """Records the instructions that run inside of `with`, in functions of one folder. Programs on
    which a rule runs other instructions than on those before are the ones to change further.
    """

    folder: str
    ran: set[Place] = field(default_factory=set[Place])
    _seen: Counter[frozenset[Place]] = field(default_factory=Counter[frozenset[Place]])
    _before: Any = None

    def __enter__(self) -> Branches:
        self.ran = set()
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def is_new(self) -> bool:
        """Returns True if few calls before ran the same instructions as the last one."""
        ran = frozenset(self.ran)
        self._seen[ran] += 1
        return self._seen[ran] <= SAME

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.ran.add((frame.f_code, frame.f_lasti))
        return self._instruction
