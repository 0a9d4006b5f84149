from __future__ import annotations

from typing import Any

from stack.demos.course.answers import ask, lines_run


def check_ridge(student: Any) -> None:
    """ridge is in operations for a byte

    Hint: at the ridge point flops / peak equals bytes / rate. Solve for flops / bytes.
    """
    for peak, rate in ((740e12, 2.9e12), (1e12, 1e11)):
        ask(student.ridge, peak, rate).equals(peak / rate)


def check_reachable(student: Any) -> None:
    """reachable is the peak above the ridge point, and the slope below it

    Hint: intensity = flops / moved. The memory lets a kernel do intensity * rate operations in a
    second.
    """
    for flops, moved, peak, rate in (
        (1e6, 6e6, 1e12, 1e11),
        (1e9, 1e6, 1e12, 1e11),
        (1e7, 1e6, 1e12, 1e11),
        (3e7, 1e6, 1e12, 1e11),
    ):
        wanted = min(peak, flops / moved * rate)
        ask(student.reachable, flops, moved, peak, rate).equals(wanted)


def _least(k: int, n: int, size: int, peak: float, rate: float, most: int) -> int | None:
    enough = lambda m: 2 * m * k * n * rate >= peak * size * (m * k + k * n + m * n)
    return next((m for m in range(1, most + 1) if enough(m)), None)


def check_rows(student: Any) -> None:
    """least_rows is the first m above the ridge point, or None

    Hint: 2 m k n >= ridge * size * (m k + k n + m n). The intensity grows with m, so you may halve
    between 1 and `most`, or solve for m and round up.
    """
    for k, n, size, peak, rate, most in (
        (64, 64, 4, 1e12, 1e11, 4096),
        (64, 128, 2, 1e12, 1e11, 4096),
        (1024, 512, 2, 1e12, 1e10, 4096),
        (16, 16, 4, 1e12, 1e11, 4096),  # never
        (4096, 4096, 2, 740e12, 2.9e12, 4096),
        (32, 32, 4, 4e11, 1e11, 4096),  # at the ridge point
        (64, 64, 4, 1e12, 1e11, 54),
        (64, 64, 4, 1e12, 1e11, 53),
    ):
        wanted = _least(k, n, size, peak, rate, most)
        ask(student.least_rows, k, n, size, peak, rate, most).equals(wanted)


def check_search(student: Any) -> None:
    """least_rows does not try all m up to a million

    Hint: halve the interval as in lesson 12, or solve the inequality for m.
    """
    case = (64, 64, 4, 1e12, 6.3e10, 1 << 20)
    question = ask(student.least_rows, *case)
    expected = "at most 2000 lines of Python executed, loops counted"
    found, lines = lines_run(student.least_rows, lambda: question.answer(expected))
    if lines > 2000:
        raise question.wrong(expected, f"{lines} lines, and the answer {found}")
