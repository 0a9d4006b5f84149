"""`stackc explain RUN --tile KERNEL`: schedules considered, with times and reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stack.plugins as plugins
from stack.cli import main
from stack.errors import UsageError
from stack.explore.saved_run import load_run
from stack.explore.tiles import choice_of, rows
from stack.ir import Builder, Func, param, tensor
from stack.run.compile import lower
from stack.run.record import Run
from stack.schedule import Prediction, ScheduleCandidate, ScheduleChoice
from stack.target import load


def product(dtype: str) -> Func:
    b = Builder()
    x, w = param("x", tensor(dtype, 1024, 1024)), param("w", tensor(dtype, 1024, 2048))
    made = b.exp(b.dot(x, w, rule="m k, k n -> m n"))
    b.names[made] = "made"
    return b.func("main", [x, w], [made])


def saved(folder: Path, backend: str, target: str, dtype: str, **more: Any) -> Path:
    run = Run("main", "ir", backend)
    made = plugins.load("stack.backends", backend)
    lower(product(dtype), made, run, target=load(target), **more)
    return run.save(folder)


@pytest.mark.parametrize(
    ("backend", "target", "dtype", "known"),
    [
        ("triton", "sm_90", "bf16", True),
        ("cuda", "sm_90", "f32", True),
        ("mlir", "avx512", "f32", False),
    ],
)
def test_each_backend_says_what_it_considered(
    backend: str, target: str, dtype: str, known: bool, tmp_path: Path
) -> None:
    choice = choice_of(load_run(saved(tmp_path, backend, target, dtype)), "made")
    assert (choice["by"], len(choice["schedules"]) > 1) == ("policy", True)
    taken, *others = rows(choice)
    assert taken[-1] == "taken"
    assert ("us" in taken[1]) is known
    for row in others:
        assert row[-1].startswith(tuple("123456789") if known else "its time is not modeled")


def test_what_does_not_fit_says_which_number(tmp_path: Path) -> None:
    """A GPU with less shared memory refuses tiles that a large one has."""
    choice = choice_of(load_run(saved(tmp_path, "triton", "sm_80", "bf16")), "%made")
    refused = [row for row in rows(choice) if "bytes of shared memory" in row[-1]]
    assert refused
    assert all(row[1] == "-" for row in refused)


def test_a_hand_written_schedule_is_first(tmp_path: Path) -> None:
    given = {"made": "m=64 n=64 k=64"}
    folder = saved(tmp_path, "triton", "sm_90", "bf16", schedules=given)
    first, *others = rows(choice_of(load_run(folder), "made"))
    assert first[0].startswith("m=64@grid n=64@grid k=64")
    assert first[-1] == "taken: written by hand"
    assert others


def test_products_of_libraries_and_unknown_names_say_so(tmp_path: Path) -> None:
    run = load_run(saved(tmp_path, "mlir", "amx", "f16"))
    choice = choice_of(run, "made")
    assert choice["schedules"] == []
    assert choice["by"].startswith("no kernel of its own: libraries have instructions")
    with pytest.raises(UsageError, match="no kernel 'nope'; there are: made"):
        choice_of(run, "nope")


def test_measured_times_put_the_fastest_first() -> None:
    choice = ScheduleChoice("g", "m (8, parallel)", "policy")
    choice.schedules = [
        ScheduleCandidate("a", Prediction(1e-6)),
        ScheduleCandidate("b"),
        ScheduleCandidate("c"),
    ]
    found = rows(choice.measured({"a": 3e-6, "b": 2e-6, "c": None}, {"c": "it faults"}).record())
    assert found == [
        ["b", "-", "2.0 us", "taken: the fastest"],
        ["a", "1.0 us", "3.0 us", "1.50x the time of the first"],
        ["c", "-", "-", "it faults"],
    ]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(saved(tmp_path, "triton", "sm_90", "bf16"))
    assert main(["explain", folder, "--tile", "made"]) == 0
    shown = capsys.readouterr().out
    assert "made: m (1024, parallel), n (2048, parallel), k (1024, reduction)" in shown
    assert "x the time of the first, tensor takes" in shown
    assert main(["explain", folder, "--tile", "made", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["group"] == "made"
