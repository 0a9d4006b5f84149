"""A third party's peers, as an installed distribution would bring them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stack.plugins as plugins

SOURCE = """
import os
import signal

import numpy as np

from stack.ir.types import BF16
from stack.run.backend import Backend, Executable, Kernel, Peer


def _compile(func, options):
    def run(arrays):
        results = func.interpret(*arrays)
        return list(results) if isinstance(results, tuple) else [results]

    kernels = [Kernel("k", "generated", source=("m.py:1", "m.py:2"), ops=("exp",))]
    return Executable(run, kernels, counts_what="whole programs", peak_bytes=64, note=str(options))


def _wrong(func, options):
    good = _compile(func, options)
    return Executable(lambda arrays: [r + 1 for r in good.run(arrays)])


def _grouped(func, options):
    # two kernels over nodes of our function: one computes %y, the other %e
    good = _compile(func, options)
    kernels = [
        Kernel("scale", "generated", stage_node="wide y", ops=("broadcast", "mul")),
        Kernel("act", "generated", stage_node="e", ops=("tanh",)),
    ]
    return Executable(good.run, kernels)


def _crash(func, options):
    print("noise on stdout", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _late(func, options):
    good = _compile(func, options)
    calls = []

    def run(arrays):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("out of memory")
        return good.run(arrays)

    return Executable(run)


def _refuse(func, options):
    raise NotImplementedError("no lowering for exp\\nand more")


def _here():
    return None


good = Backend("goodpeer", _compile, _here, peer=Peer())
apart = Backend("apartpeer", _compile, _here, peer=Peer(isolate=True))
wrong = Backend("wrongpeer", _wrong, _here, peer=Peer())
grouped = Backend("groupedpeer", _grouped, _here, peer=Peer())
crash = Backend("crashpeer", _crash, _here, peer=Peer(isolate=True))
late = Backend("latepeer", _late, _here, peer=Peer())
refuse = Backend("refusepeer", _refuse, _here, peer=Peer())
absent = Backend("absentpeer", _compile, lambda: "pip install absent", peer=Peer())
"""
NAMES = ("good", "apart", "wrong", "grouped", "crash", "late", "refuse", "absent")


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Peers named goodpeer, wrongpeer and so on, found by entry point, here and in workers."""
    site = tmp_path / "site"
    info = site / "third_party-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "third_party_peers.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    lines = [f"{n}peer = third_party_peers:{n}" for n in NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[stack.backends]", *lines, ""]))
    monkeypatch.syspath_prepend(str(site))
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), inherited])))
    for cached in (plugins._points, plugins.load):
        cached.cache_clear()
    yield
    for cached in (plugins._points, plugins.load):
        cached.cache_clear()
    sys.modules.pop("third_party_peers", None)
