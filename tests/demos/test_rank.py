"""Output and files of a race of ranks, on one gloo process."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stack.demos import rank  # noqa: E402


def rows(device: torch.device) -> Iterable[rank.Row]:
    yield {"system": "made up", "us": 1234.5}
    yield {"system": device.type}


def test_rows_are_printed_and_written_with_where_they_are_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**place, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["race", str(tmp_path / "out")])
    rank.measure("made_up", rows)
    assert capsys.readouterr().out == "made up  us 1.23e+03\ncpu\n"
    made = json.loads((tmp_path / "out" / "made_up.json").read_text())
    assert made["rows"] == [{"system": "made up", "us": 1234.5}, {"system": "cpu"}]
    assert made["device"] == "1 x gloo process"
    assert made["command"] == "torchrun --nproc-per-node 1 -m stack.demos.made_up OUT"
    assert list(made["versions"]) == ["torch"]
