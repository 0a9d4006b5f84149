from __future__ import annotations

from typing import Any

from stack.demos.course.answers import ask, show


def _row(system: str, ms: float | None, spread: float | None, **more: Any) -> dict[str, Any]:
    row = {"system": system, "via": "ir", "ok": True, "kernels": 3, "library_calls": 0}
    return {**row, "run_ms": ms, "run_ms_spread": spread, **more}


def check_ratio(student: Any) -> None:
    """ratio is None where a time is missing or noisy

    Hint: a time is noisy if its run_ms_spread is more than noisy * run_ms. Test both rows, each
    with its own time, and test for None before you compare.
    """
    for ours, theirs, noisy, wanted in (
        ((2.0, 0.01), (3.0, 0.1), 0.05, 1.5),
        ((2.0, 0.01), (3.0, 0.3), 0.05, None),
        ((2.0, 0.1), (4.0, 0.2), 0.05, 2.0),  # just the share `noisy`
        ((1.0, 0.07), (2.0, 0.01), 0.05, None),
        ((2.0, 0.2), (3.0, 0.1), 0.05, None),
        ((2.0, 0.2), (3.0, 0.1), 0.2, 1.5),
        ((2.0, 0.01), (None, None), 0.05, None),
        ((None, None), (2.0, 0.01), 0.05, None),
        ((20.0, 0.6), (30.0, 0.6), 0.05, 1.5),
        ((0.2, 0.04), (0.3, 0.01), 0.05, None),
    ):
        keys = ("run_ms", "run_ms_spread")
        given = f"{dict(zip(keys, ours))}, {dict(zip(keys, theirs))}, {noisy}"
        rows = _row("a", *ours), _row("b", *theirs)
        ask(student.ratio, *rows, noisy, given=given).equals(wanted)


def check_kernels(student: Any) -> None:
    """fewest_kernels counts library calls, and leaves out systems that are wrong

    Hint: first keep the rows with ok; without any, the answer is []. Then find the least kernels +
    library_calls, and list all rows that have it.
    """
    wrong = _row("c", 1.0, 0.0, kernels=1, ok=False)
    rows = [
        _row("a", 1.0, 0.0),
        _row("b", 1.0, 0.0, via="native", kernels=1, library_calls=2),
        wrong,
        _row("d", 1.0, 0.0, kernels=9),
    ]
    for some, wanted in ((rows, ["a/ir", "b/native"]), ([wrong], [])):
        question = ask(student.fewest_kernels, some, given=_short(some))
        found = question.answer(show(wanted))
        if sorted(found or []) != wanted:
            raise question.wrong(show(wanted), found)


def _short(rows: list[dict[str, Any]]) -> str:
    keys = ("system", "via", "ok", "kernels", "library_calls")
    return f"rows of {', '.join(keys)}: " + ", ".join(
        str(tuple(row[k] for k in keys)) for row in rows
    )


def check_mean(student: Any) -> None:
    """geometric_mean of 2 and 1/2 is 1, and None is left out

    Hint: drop None first. Without numbers the answer is None, else math.exp of the mean of
    math.log.
    """
    for ratios, wanted in (
        ([2.0, 0.5, None], 1.0),
        ([8.0, 1.0, 1.0], 2.0),
        ([4.0, None], 4.0),
        ([None], None),
        ([], None),
    ):
        ask(student.geometric_mean, ratios).equals(wanted)
