"""Kernels compiled side by side: what one does to its compiler ends that one alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import group_of

from stack.errors import StackError
from stack.explore.lowering import Settings, inspect_target
from stack.explore.target import ExampleCall
from stack.ir import Builder, Node
from stack.passes.policies.lowerings import lowering_of
from stack.run.cache import Cache
from stack.target import as_gpu

pytest.importorskip("triton")
from stack.backends.device import worker_pool
from stack.backends.triton import build
from stack.backends.triton.printer import print_kernel
from stack.backends.triton.source import Source

torch = pytest.importorskip("torch")
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def kernels() -> list[Source]:
    def double(b: Builder, x: Node) -> Node:
        return b.add(x, x)

    def root(b: Builder, x: Node) -> Node:
        return b.sqrt(x)

    made = [
        lowering_of(group_of(build, [("f32", 100)]), as_gpu(None)).kernel()
        for build in (double, root)
    ]
    return [print_kernel(node, "kernel") for node in made]


def requests(target: str = "sm_90") -> list[dict[str, Any]]:
    return [build.request(source, target) for source in kernels()]


def test_replies_come_in_order() -> None:
    sources = kernels()
    replies = build.worker_pool().compile(requests())
    for source, reply in zip(sources, replies, strict=True):
        here = build.build(source, "sm_90")
        assert build.binary(reply, source).stages["ttir"] == here.stages["ttir"]
    assert "sqrt" in replies[1]["stages"]["ptx"]


def test_other_work_is_done_when_kernels_are_sent(tmp_path: Path) -> None:
    own, store, seen = build.worker_pool(), Cache(tmp_path), list[int]()
    own.compile(requests(), store, lambda: seen.append(len(own.sent)))
    assert (seen, own.sent) == ([2], {})
    own.compile(requests(), store, lambda: seen.append(0))
    assert seen == [2], "the cache answers, so there is no wait"


def test_kernels_that_nobody_waits_for_are_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave() -> None:
        raise ZeroDivisionError

    own = build.worker_pool()
    with pytest.raises(ZeroDivisionError):
        own.compile(requests(), meanwhile=leave)
    monkeypatch.setattr(worker_pool.WorkerPool, "_running", None)
    assert all("cubin" in reply for reply in own.compile(requests()))


def test_a_kernel_that_was_started_is_not_sent_again(tmp_path: Path) -> None:
    own, store, (one, other) = build.worker_pool(), Cache(tmp_path), requests()
    own.start(one, store)
    (started,) = own.sent.values()
    seen: list[Any] = []
    own.compile([one, other], store, lambda: seen.extend(own.sent.values()))
    assert (len(seen), seen[0]) == (2, started)
    own.start(one, store)
    assert not own.sent, "the cache has it"


def test_a_crash_and_an_error_are_replies() -> None:
    good, wrong = (build.request(s, "sm_90") for s in kernels())
    crash = {**good, "text": CRASH}
    wrong["text"] = wrong["text"].replace("tl.store", "tl.nothing")
    found = build.worker_pool().compile([crash, good, wrong])
    assert "SIGSEGV" in found[0]["error"]
    assert found[1]["cubin"]
    assert "nothing" in found[2]["error"]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("while True:\n    pass\n", "did not finish in time"),
        ("held = [bytearray(1 << 24) for _ in range(1 << 20)]\n", "MemoryError"),
        (CRASH, "SIGSEGV"),
        ("raise ValueError('nothing for me')\n", "nothing for me"),
    ],
)
def test_what_a_kernel_does_to_its_compiler_is_bounded(harm: str, why: str) -> None:
    good = build.request(kernels()[0], "sm_90")
    seconds = 2.0 if "time" in why else 60.0
    bad = {**good, "text": harm, "seconds": seconds, "bytes": 1 << 28}
    first, second = build.worker_pool().compile([bad, good])
    assert why in first["error"]
    assert second["cubin"]


def test_tools_that_a_compiler_starts_end_with_it(tmp_path: Path) -> None:
    """A hung assembler does not outlive the fork that waits for it."""
    note = tmp_path / "pid"
    harm = (
        "import subprocess\np = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))\np.wait()\n"
    )
    good = build.request(kernels()[0], "sm_90")
    (reply,) = build.worker_pool().compile([{**good, "text": harm, "seconds": 2.0}])
    assert "in time" in reply["error"]
    state = Path(f"/proc/{note.read_text()}/stat")
    assert not state.exists() or state.read_text().split(")")[1].split()[0] == "Z"


def test_what_ended_its_compiler_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = {**build.request(kernels()[0], "sm_90"), "text": "while 1: pass\n", "seconds": 1.0}
    own = build.worker_pool()
    first = own.compile([hang])

    monkeypatch.setattr(own, "_sent", None)
    assert own.compile([hang]) == first


def test_each_kernel_that_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of IR computes results after a crash, a hang and a lack of memory."""
    real = build.request
    harm = iter(
        (CRASH, "while True:\n    pass\n", "held = [bytes(1 << 24) for _ in range(1 << 20)]\n")
    )

    def request(source: Source, *rest: Any) -> dict[str, Any]:
        asked = real(source, *rest)
        if "tanh" not in source.text:
            return asked
        return {**asked, "text": next(harm), "seconds": 4.0, "bytes": 1 << 28}

    def fn(x: Any) -> Any:
        return torch.tanh(x.exp()).sum(1), torch.sqrt(x)

    monkeypatch.setattr(build, "request", request)
    settings = Settings("triton", machine="sm_90")
    run = inspect_target(ExampleCall("p", fn, (torch.ones(8, 16),), "torch"), settings)
    kinds = {op: k.kind for k in run.kernels for op in k.ops}
    assert (kinds["sqrt"], kinds["tanh"]) == ("generated", "library")
    notes = "\n".join(run["retreat"].notes)
    assert "SIGSEGV" in notes
    assert "in time" in notes
    assert run.coverage["library"] >= 1


def test_a_lost_sidecar_is_started_again() -> None:
    own = build.worker_pool()
    own.warm()
    client = own.client
    assert client is not None
    os.kill(client.process.pid, signal.SIGKILL)
    client.process.wait()
    assert len(own.compile(requests())) == 2
    assert own.client is not client


def test_one_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Any) -> Any:
        raise OSError("no processes")

    monkeypatch.setattr(worker_pool.WorkerPool, "_running", lost)
    with pytest.warns(UserWarning, match="no processes"):
        replies = build.worker_pool().compile(requests())
    assert all("cubin" in r for r in replies)


def test_the_cache_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, store = build.worker_pool(), Cache(tmp_path)
    first = own.compile(requests(), store)

    def refuse(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(own, "_sent", refuse)
    again = own.compile(requests(), store)
    assert [r["cubin"] for r in again] == [r["cubin"] for r in first]
    with pytest.raises(AssertionError, match="compiled again"):
        own.compile(requests("sm_80"), store)


def test_what_does_not_fit_loads_fewer_steps_ahead_or_says_so() -> None:
    source = kernels()[0]
    reply = build.answer(build.request(source, "sm_90", limit=-1))
    assert "does not fit" in reply["error"]
    with pytest.raises(StackError, match="kernel kernel: it does not fit"):
        build.binary(reply, source)
