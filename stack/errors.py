"""All errors that stack raises on purpose. Each names the value, the rule and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Collection


class StackError(Exception):
    """Base class of all errors of this library."""

    exit_code = 1


class ParseError(StackError):
    """Malformed IR text. Carries the line and column (both from 1) and says what was expected."""

    exit_code = 2

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class RuleError(StackError):
    """An op got operands or attributes that its axis rule or signature does not allow."""

    exit_code = 4


class SymbolicSize(StackError, TypeError):
    """Raised if a number is needed, but a size is an expression of size symbols, whose values are
    unknown.
    """


class VerifyError(StackError):
    """A function breaks a rule of the IR.

    Attributes:
        rule: the rule that is broken.
        node: the node as text.
        source: the source lines that the node came from.
        after: the pass after which the error was found; empty when no pass ran.
    """

    exit_code = 4

    def __init__(
        self,
        rule: str,
        node: str = "",
        source: tuple[str, ...] = (),
        after: str = "",
    ) -> None:
        self.rule = rule
        self.node = node
        self.source = source
        self.after = after
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"after pass {self.after!r}: {self.rule}" if self.after else self.rule]
        if self.node:
            lines.append(f"  node: {self.node}")
        if self.source:
            lines.append(f"  from: {', '.join(self.source)}")
        return "\n".join(lines)

    def found_after(self, pass_name: str) -> VerifyError:
        """Returns a copy of this error that names the pass `pass_name` as the one after which the
        error was found.
        """
        return VerifyError(self.rule, self.node, self.source, pass_name)


class UnsupportedOp(StackError):
    """Raised for a program with ops that have no native lowering. The message lists each with its
    source lines.
    """

    exit_code = 3

    def __init__(self, ops: list[tuple[str, tuple[str, ...]]], hint: str = "") -> None:
        self.ops = ops
        rows = [f"  {name}  ({', '.join(source) or 'no source line'})" for name, source in ops]
        tail = f"\n{hint}" if hint else ""
        super().__init__(f"{len(ops)} unsupported op(s):\n" + "\n".join(rows) + tail)


class NoElementType(StackError, TypeError):
    """An array has an element type that the IR lacks."""

    exit_code = 3

    def __init__(self, dtype: object, known: Collection[str]) -> None:
        rule = f"the IR has no element type for {dtype}; known: {', '.join(known)}"
        super().__init__(f"{rule}. Cast to one of those before the program")

    def at(self, name: str, source: tuple[str, ...] = ()) -> UnsupportedOp:
        """The same error as an UnsupportedOp that names the op or argument with this type."""
        return UnsupportedOp([(name, source)], str(self))


class BackendMissing(StackError):
    """A backend or peer cannot run here. Names the extra or the device that is needed."""

    exit_code = 5

    def __init__(self, name: str, need: str) -> None:
        self.name = name
        self.need = need
        super().__init__(f"backend {name!r} is not available: {need}")


class WingMissing(StackError):
    """A part beside the core is not installed, or cannot be imported. Says how to get it."""

    exit_code = 5

    def __init__(self, name: str, what: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"this needs the wing {name!r} ({what}), but {reason}; the whole distribution has it:"
            " pip install --force-reinstall stack-compiler"
        )


class UsageError(StackError):
    """A command or call that cannot be understood. The message names what is accepted."""

    exit_code = 2


MOST_LISTED = 40  # names; of more the nearest are listed
NEAREST = 5


def unknown_name(
    what: str,
    name: str,
    known: Collection[str],
    shown: Collection[str] = (),
    see: str = "",
) -> UsageError:
    """The error for a name that does not exist. It suggests the closest name and lists all of them,
    or the nearest of many.

    `shown` lists the names in another form, for example with their defaults; `see` is the command
    that lists many of them.
    """
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if len(known) > MOST_LISTED:
        likest = sorted(known, key=lambda n: _likeness(name, n), reverse=True)[:NEAREST]
        rest = f"; `{see}` lists all" if see else ""
        listed = f"the nearest of {len(known)} are: {', '.join(likest)}{rest}"
        return UsageError(f"{what} {name!r}; {hint}{listed}")
    listed = ", ".join(sorted(shown or known)) or "none"
    return UsageError(f"{what} {name!r}; {hint}there are: {listed}")


def _likeness(name: str, known: str) -> tuple[bool, float]:
    """Returns a sort key, larger for a better match: True if `known` contains `name`, then the
    similarity of their letters.
    """
    a, b = name.lower(), known.lower()
    return a in b, difflib.SequenceMatcher(None, b, a).ratio()


POISONED = 3  # exit code of a process that has lost its device
_FAULTS = (
    "CUDA error",
    "cudaError",
    "CUDA_ERROR",
    "device-side assert",
    "illegal memory access",
    "XID",
)


def is_device_lost(error: object) -> bool:
    """True if an error reports a fault that destroyed the device's context, which ends the process
    too.
    """
    return any(mark in str(error) for mark in _FAULTS)
