"""The parts of a check: a question to a student's function, and the wrong answer to report.

A check asks (`ask`), and compares the answer (`equals`), or takes it (`answer`) and raises a
`Wrong` for what is wrong with it. A student then reads the input, what was expected, and what came
out.
"""

from __future__ import annotations

import inspect
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

LONGEST = 300  # characters of a value that are shown


class Gap(NotImplementedError):
    """Raised by an exercise at code that the student has not written yet."""


class Wrong(AssertionError):
    """A wrong answer: the input that shows it, what was expected, and what came out."""

    def __init__(self, given: str, expected: str, found: str) -> None:
        super().__init__(f"{given}: expected {expected}, got {found}")
        self.given, self.expected, self.found = given, expected, found


@dataclass(frozen=True)
class Question:
    """A call of a student's function, and its input as text."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    given: str

    def answer(self, expected: str) -> Any:
        """Calls the function on copies of the arguments. Raises Wrong, from the error, if it fails;
        `expected` is shown then.
        """
        try:
            return self.function(*(a.copy() if isinstance(a, np.ndarray) else a for a in self.args))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # Ctrl-C ends an endless loop
            cause = root_cause(error)
            if isinstance(cause, Gap):
                raise cause from None
            raise self.wrong(expected, type(error).__name__) from cause

    def equals(self, wanted: Any, rtol: float = 1e-6) -> None:
        """Raises Wrong if the answer differs; floats may differ by `rtol` of their size."""
        found = self.answer(show(wanted))
        if not equal(wanted, found, rtol):
            raise self.wrong(*_difference(wanted, found, rtol))

    def refuses(self, wanted: type[Exception]) -> None:
        """Raises Wrong unless the call raises this error."""
        expected = f"a {wanted.__name__}"
        try:
            found = self.answer(expected)
        except Wrong as wrong:
            if isinstance(wrong.__cause__, wanted):
                return
            raise
        raise self.wrong(expected, found)

    def wrong(self, expected: str, found: Any) -> Wrong:
        """The error for a wrong answer to this question."""
        return Wrong(self.given, expected, found if isinstance(found, str) else show(found))


def ask(function: Callable[..., Any], *args: Any, given: str = "") -> Question:
    """Returns the question that a call is. `given` replaces the text of the arguments; where the
    function has no name, of the call.
    """
    name = getattr(function, "__name__", str(function))
    text = given or ", ".join(_arguments(function, args))
    return Question(function, args, text if name == "<lambda>" else f"{name}({text})")


def _arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Formats arguments; those of a function of several parameters with their names."""
    try:
        named = inspect.signature(function).bind(*args).arguments
    except (TypeError, ValueError):  # the student changed the parameters
        return list(map(show, args))
    if len(named) == 1:
        return list(map(show, args))
    return [f"{name}={show(value)}" for name, value in named.items()]


def root_cause(error: BaseException) -> BaseException:
    """Returns the error that an error was raised from: Triton's interpreter wraps errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def show(value: Any) -> str:
    """Formats a value for a student: numbers with few digits, long values cut."""
    if isinstance(value, np.ndarray):
        text = np.array2string(value, precision=6, threshold=16, edgeitems=3, separator=", ")
    elif isinstance(value, float | np.floating):
        text = f"{value:.10g}"
    elif isinstance(value, np.generic):
        text = str(value)
    elif isinstance(value, tuple | list):
        items = ", ".join(map(show, value))
        comma = "," if len(value) == 1 else ""
        text = f"[{items}]" if isinstance(value, list) else f"({items}{comma})"
    else:
        text = repr(value)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def equal(wanted: Any, found: Any, rtol: float = 1e-6) -> bool:
    """True if two values are equal. Floats and arrays may differ by `rtol`; nan equals nan."""
    if isinstance(wanted, tuple | list):
        if not isinstance(found, tuple | list) or len(wanted) != len(found):
            return False
        return all(equal(w, f, rtol) for w, f in zip(wanted, found, strict=True))
    if isinstance(wanted, float | np.floating | np.ndarray):
        try:
            values = np.asarray(found, np.float64)
        except (TypeError, ValueError):
            return False
        if found is None or values.shape != np.shape(wanted):
            return False
        return bool(_close(np.asarray(wanted), values, rtol).all())
    try:
        return bool(wanted == found)
    except ValueError:  # an array where none is wanted
        return False


def _close(wanted: np.ndarray, found: np.ndarray, rtol: float) -> np.ndarray:
    """True for each element that is close, relative to itself and to the largest one."""
    finite = wanted[np.isfinite(wanted)]
    least = 1e-3 * rtol * float(np.abs(finite).max()) if finite.size else 0.0
    return np.isclose(found, wanted, rtol=rtol, atol=least, equal_nan=True)


def _difference(wanted: Any, found: Any, rtol: float) -> tuple[str, str]:
    """Returns the texts of two values that differ: of several results the first one that does, of
    large arrays the first element that does.
    """
    if _is_results(wanted) and isinstance(found, tuple | list) and len(found) == len(wanted):
        number = next(i for i, (w, f) in enumerate(zip(wanted, found)) if not equal(w, f, rtol))
        place = f" as result {number}" if len(wanted) > 1 else ""
        one, other = _difference(wanted[number], found[number], rtol)
        return one + place, other
    if not isinstance(wanted, np.ndarray):
        return show(wanted), show(found)
    try:
        values = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        return show(wanted), show(found)
    if values.shape != wanted.shape:
        return f"an array of shape {wanted.shape}", f"shape {values.shape}"
    first = tuple(np.argwhere(~_close(wanted, values, rtol))[0])
    if wanted.size > 8:
        place = f" at index {[int(i) for i in first]}"
        return _apart(wanted[first], values[first], place)
    return _apart(wanted, values, "")


def _is_results(value: Any) -> bool:
    return isinstance(value, tuple | list) and any(isinstance(item, np.ndarray) for item in value)


def _apart(wanted: Any, found: Any, place: str) -> tuple[str, str]:
    """The texts of two values, with their distance if their digits are equal."""
    texts = show(wanted) + place, show(found) + place
    if texts[0] != texts[1]:
        return texts
    return texts[0], f"{texts[1]}, which is {np.nanmax(np.abs(found - wanted)):.1e} off"


def peak_memory(call: Callable[[], Any]) -> tuple[Any, int]:
    """Returns the result of a call, and the most bytes that it had allocated at one time."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def lines_run(function: Callable[..., Any], call: Callable[[], Any]) -> tuple[Any, int]:
    """Returns the result of a call, and how many lines of the function's file it executed.

    A line inside of a loop counts at each iteration: this measures work without a clock.
    """
    file, count = function.__code__.co_filename, 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        return local if frame.f_code.co_filename == file else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(), count
    finally:
        sys.settrace(before)
