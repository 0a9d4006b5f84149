"""Tiles by measurement: what a child process says, how it may end, what the cache keeps."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stack.tune.choose as choosing
from stack.backends.triton import BACKEND
from stack.errors import UsageError
from stack.ir import Builder, Func, param, parse, tensor, verify
from stack.rewrite import Pipeline
from stack.run.backend import Executable, Kernel, Lowering, Machine
from stack.run.cache import Cache
from stack.tune.child import Child
from stack.tune.choose import alone, choose
from stack.tune.worker import compiled

WORKER = """
import json, os, sys, time
request = json.load(sys.stdin)
for text in request["programs"]:
    tile = text[text.index("schedule=") + 10 :].split('"')[0]
    rows = int(tile.removeprefix("m=").split("@")[0].split("+")[0])
    if rows == CRASH:
        print("it broke", file=sys.stderr)
        os._exit(7)
    if rows == HANG:
        time.sleep(60)
    problem = "" if rows != REFUSE else "does not fit"
    print(json.dumps({"seconds": None if problem else 1 / rows, "problem": problem}), flush=True)
"""
HERE = replace(BACKEND, machine=Machine(identify=lambda options: "a device"))


def product(m: int = 4096) -> Func:
    x, w = param("x", tensor("bf16", m, 512)), param("w", tensor("bf16", 1024, 512))
    b = Builder()
    y = b.dot(x, w, rule="m k, n k -> m n")
    return b.func("main", [x, w], [b.exp(y)])


def workers(patch: pytest.MonkeyPatch, crash: int = 0, hang: int = 0, refuse: int = 0) -> list[int]:
    """Replace the worker; the list grows with each child."""
    text = WORKER.replace("CRASH", str(crash)).replace("HANG", str(hang))
    text = text.replace("REFUSE", str(refuse))
    made = functools.partial(Child, longest=3.0, command=(sys.executable, "-c", text))
    started: list[int] = []

    def child(*args: object) -> Child:
        started.append(len(args))
        return made(*args)  # type: ignore[arg-type]

    patch.setattr(choosing, "Child", child)
    return started


def measured(func: Func, folder: Path) -> tuple[Func, choosing.Trial]:
    chosen, (trial,) = choose(Pipeline("fuse").run(func).func, HERE, {}, Cache(folder))
    verify(chosen)
    assert parse(str(chosen)) is chosen
    return chosen, trial


def test_the_fastest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = workers(monkeypatch)
    chosen, trial = measured(product(), tmp_path)
    assert 2 <= len(trial.schedules) <= 8
    rows = {t: int(t.removeprefix("m=").split("@")[0].split("+")[0]) for t in trial.schedules}
    assert rows[trial.best] == max(rows.values())
    (group,) = chosen.nodes
    assert group.attrs["schedule"] == trial.best
    assert len(started) == 1 and not trial.problems


def test_a_second_time_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = workers(monkeypatch)
    first, _ = measured(product(), tmp_path)
    again, trial = measured(product(), tmp_path)
    assert again is first and trial.is_known and len(started) == 1
    assert "from the cache" in str(trial)
    measured(product(2048), tmp_path)
    assert len(started) == 2


def test_another_device_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = workers(monkeypatch)
    measured(product(), tmp_path)
    other = replace(BACKEND, machine=Machine(identify=lambda options: "another device"))
    choose(Pipeline("fuse").run(product()).func, other, {}, Cache(tmp_path))
    assert len(started) == 2


@pytest.mark.parametrize("way", ["crash", "hang", "refuse"])
def test_what_fails_is_dropped_and_recorded(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = workers(monkeypatch, **{way: 64})
    _, trial = measured(product(), tmp_path)
    lost = [t for t in trial.schedules if t.startswith("m=64@")]
    assert lost and set(trial.problems) == set(lost)
    said = {"crash": "ended with 7: it broke", "hang": "no answer in 3 s", "refuse": "does not fit"}
    assert all(said[way] in trial.problems[t] for t in lost)
    assert trial.best not in lost
    assert all(trial.seconds[t] for t in trial.schedules if t not in lost)
    assert said[way] in str(trial)
    assert len(started) == (1 if way == "refuse" else 1 + len(lost))


def test_where_nothing_runs_the_model_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-c", "raise SystemExit(5)")
    monkeypatch.setattr(choosing, "Child", functools.partial(Child, command=command))
    chosen, trial = measured(product(), tmp_path)
    assert trial.best == trial.schedules[0] == chosen.nodes[0].attrs["schedule"]
    assert not list(tmp_path.rglob("*.obj"))


def test_equal_groups_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers(monkeypatch)
    x, w = param("x", tensor("bf16", 512, 512)), param("w", tensor("bf16", 512, 512))
    b = Builder()
    y = b.dot(b.dot(x, w, rule="m k, n k -> m n"), w, rule="m k, n k -> m n")
    func = b.func("main", [x, w], [y])
    chosen, trials = choose(func, HERE, {}, Cache(tmp_path))
    assert len(trials) == 1
    assert len({n.attrs["schedule"] for n in chosen.nodes}) == 1


def test_alone_keeps_constants_and_joins_equal_arguments() -> None:
    x = param("x", tensor("f32", 8, 8))
    b = Builder()
    y = b.dot(x, x, rule="m k, n k -> m n")
    made = alone(y)
    assert len(made.params) == 1
    verify(made)


def test_a_backend_without_a_choice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no schedules to choose"):
        choose(product(), replace(BACKEND, lowering=Lowering()), {}, Cache(tmp_path))


@pytest.mark.parametrize("warning", ["", "products are serialized: too few registers"])
def test_a_tile_that_the_assembler_warns_of_is_dropped(warning: str) -> None:
    """The worker times nothing then, and the warning is the reason in the record."""
    made = Executable(run=list, kernels=[Kernel("k", "generated", warning=warning)])
    asked: list[dict[str, Any]] = []

    def compile_(func: Func, options: dict[str, Any]) -> Executable:
        asked.append(options)
        return made

    found = compiled(product(64), replace(BACKEND, compile=compile_), {"device": "cuda"})
    assert found == (warning or made)
    assert asked == [{"device": "cuda", "assembled": True}]


@pytest.mark.slow
def test_the_worker_times_programs(tmp_path: Path) -> None:
    """In Triton's interpreter: the times mean nothing, the path is the one that a GPU takes."""
    pytest.importorskip("triton")
    script = (
        "from test_choose import *\n"
        "func = Pipeline('fuse').run(product(64)).func\n"
        f"_, (trial,) = choose(func, BACKEND, {{'device': 'cpu'}}, Cache({str(tmp_path)!r}))\n"
        "assert all(trial.seconds[t] for t in trial.schedules), str(trial)\n"
    )
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_schedule_that_is_given_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = workers(monkeypatch)
    func = Pipeline("fuse").run(product()).func
    (name,) = (func.body.names[n] for n in func.nodes)
    given = {name: "m=64 n=32"}
    chosen, trials = choose(func, HERE, {}, Cache(tmp_path), schedules=given)
    assert not trials and not started
    assert chosen.nodes[0].attrs["schedule"].startswith("m=64@grid n=32@grid k=")
