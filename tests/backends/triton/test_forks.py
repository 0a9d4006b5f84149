"""Kernels compiled side by side: what one does to its compiler ends that one alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import group_of

from stack.ir import Builder, Node
from stack.passes.blocking.tiler import BlockTiler
from stack.run.cache import Cache

pytest.importorskip("triton")
from stack.backends.triton import build, forks
from stack.backends.triton.printer import Source, print_kernel
from stack.errors import StackError

CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def kernels() -> list[Source]:
    def double(b: Builder, x: Node) -> Node:
        return b.add(x, x)

    def root(b: Builder, x: Node) -> Node:
        return b.sqrt(x)

    made = [BlockTiler(group_of(build, [("f32", 100)])).kernel() for build in (double, root)]
    return [print_kernel(node, "kernel") for node in made]


def test_replies_come_in_order() -> None:
    sources = kernels()
    replies = build.build_all(sources, "sm_90", build.UNLIMITED, None)
    for source, reply in zip(sources, replies, strict=True):
        here = build.build(source, "sm_90")
        assert build.binary(reply, source).stages["ttir"] == here.stages["ttir"]
    assert "sqrt" in replies[1]["stages"]["ptx"]


def test_a_crash_and_an_error_are_replies() -> None:
    good, wrong = (build.request(s, "sm_90") for s in kernels())
    crash = {**good, "text": CRASH}
    wrong["text"] = wrong["text"].replace("tl.store", "tl.nothing")
    found = forks.compile_side_by_side([crash, good, wrong])
    assert "SIGSEGV" in found[0]["error"]
    assert found[1]["cubin"]
    assert "nothing" in found[2]["error"]


def test_a_lost_sidecar_is_started_again() -> None:
    forks.warm()
    client = forks._client
    assert client is not None
    os.kill(client.process.pid, signal.SIGKILL)
    client.process.wait()
    assert len(build.build_all(kernels(), "sm_90", build.UNLIMITED, None)) == 2
    assert forks._client is not client


def test_one_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Any) -> list[dict[str, Any]]:
        raise StackError("no processes")

    monkeypatch.setattr(build, "compile_side_by_side", lost)
    with pytest.warns(UserWarning, match="no processes"):
        replies = build.build_all(kernels(), "sm_90", build.UNLIMITED, None)
    assert all("cubin" in r for r in replies)


def test_the_cache_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, store = kernels(), Cache(tmp_path)
    first = build.build_all(sources, "sm_90", build.UNLIMITED, store)

    def refuse(_: Any) -> list[dict[str, Any]]:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "compile_side_by_side", refuse)
    monkeypatch.setattr(build, "answer", refuse)
    again = build.build_all(sources, "sm_90", build.UNLIMITED, store)
    assert [r["cubin"] for r in again] == [r["cubin"] for r in first]
    with pytest.raises(AssertionError, match="compiled again"):
        build.build_all(sources, "sm_80", build.UNLIMITED, store)


def test_what_does_not_fit_loads_fewer_steps_ahead_or_says_so() -> None:
    source = kernels()[0]
    reply = build.answer(build.request(source, "sm_90", limit=-1))
    assert "does not fit" in reply["error"]
    with pytest.raises(StackError, match="kernel kernel: it does not fit"):
        build.binary(reply, source)
