"""Every error that stack raises on purpose. Each names the value, the rule and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stack.ir.node import Node


class StackError(Exception):
    """Base class of all errors of this library."""

    exit_code = 1


class ParseError(StackError):
    """Malformed IR text. Carries where (1-based) and what was expected."""

    exit_code = 2

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class RuleError(StackError):
    """An op got operands or attributes that its axis rule or signature does not allow."""

    exit_code = 4


class SymbolicSize(StackError, TypeError):
    """A number is asked for where a size has symbols."""


class VerifyError(StackError):
    """A function breaks a rule of the IR.

    Attributes name the pass after which it was found (empty when none ran), the node as text,
    the rule that is broken and the source lines that the node came from.
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
        """The same error, blamed on a pass."""
        return VerifyError(self.rule, self.node, self.source, pass_name)


class UnsupportedOp(StackError):
    """Ops without a native lowering, all of them, each with its source lines."""

    exit_code = 3

    def __init__(self, ops: list[tuple[str, tuple[str, ...]]], hint: str = "") -> None:
        self.ops = ops
        rows = [f"  {name}  ({', '.join(source) or 'no source line'})" for name, source in ops]
        tail = f"\n{hint}" if hint else ""
        super().__init__(f"{len(ops)} unsupported op(s):\n" + "\n".join(rows) + tail)


class NoElementType(StackError, TypeError):
    """An array has elements of a type that the IR does not have."""

    exit_code = 3

    def __init__(self, dtype: object, known: Collection[str]) -> None:
        rule = f"the IR has no element type for {dtype}; it has {', '.join(known)}"
        super().__init__(f"{rule}. Cast outside of the program, to one of those")

    def at(self, name: str, source: tuple[str, ...] = ()) -> UnsupportedOp:
        """The same, said of the op or the argument that has it."""
        return UnsupportedOp([(name, source)], str(self))


class BackendMissing(StackError):
    """A backend or peer cannot run here. Names the extra or the device that is needed."""

    exit_code = 5

    def __init__(self, name: str, need: str) -> None:
        self.name = name
        self.need = need
        super().__init__(f"backend {name!r} is not available: {need}")


class KernelRefused(StackError):
    """Kernels that a backend's compiler refuses, cannot fit, or does not finish with.

    `kernels` says why, by kernel node of the lowered function; `stack.run.retreat` computes their
    groups in other ways.
    """

    def __init__(self, kernels: Mapping[Node, str]) -> None:
        self.kernels = dict(kernels)
        rows = [f"kernel {n.attrs.get('name', n.op)}: {why}" for n, why in self.kernels.items()]
        super().__init__("\n".join(rows))


class UsageError(StackError):
    """A command or a call that cannot be understood; says what would be."""

    exit_code = 2


def unknown_name(
    what: str, name: str, known: Collection[str], shown: Collection[str] = ()
) -> UsageError:
    """The error for a name that does not exist: the nearest one, and all that there are.

    `shown` lists them in another form, such as with their defaults.
    """
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(sorted(shown or known)) or "none"
    return UsageError(f"{what} {name!r}; {hint}there are: {listed}")


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
    """Whether an error says that a fault took the device's context, and the process with it."""
    return any(mark in str(error) for mark in _FAULTS)
