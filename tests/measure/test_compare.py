"""Comparisons with peers that behave, and with peers that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.cli import main
from stack.errors import UsageError
from stack.measure.compare import COLUMNS
from stack.run.specs import parse_backends

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8] from "m.py:1 net.scale"
  %y = mul(%x, %wide) : f32[4, 8] from "m.py:1 net.scale"
  %e = tanh(%y) : f32[4, 8] from "m.py:2 net"
  return %e
}
"""


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


def compare(
    capsys: pytest.CaptureFixture[str], file: str, peers: str
) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = main(["compare", file, "--with", peers, "--json", "--rounds", "5"])
    done = capsys.readouterr()
    return code, json.loads(done.out), done.err


def row_of(document: dict[str, Any], system: str) -> dict[str, Any]:
    (found,) = [r for r in document["rows"] if r["system"] == system]
    return found


@pytest.mark.usefixtures("third_party")
def test_rows_have_exactly_the_keys(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, err = compare(capsys, text_file, "goodpeer")
    assert code == 0
    assert found["schema"] == "stack.compare/1"
    assert "cores" in found["device"]
    assert [r["system"] for r in found["rows"]] == ["stack-mlir", "goodpeer"]
    for row in found["rows"]:
        assert set(row) == set(COLUMNS)
        assert row["ok"]
        assert row["run_ms"] > 0
        assert row["run_ms_spread"] >= 0
        assert row["max_error"] < 1e-5
    assert row_of(found, "goodpeer")["counts_what"] == "whole programs"
    assert "interleaved rounds" in err


@pytest.mark.usefixtures("third_party")
def test_groups_are_aligned_by_source(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = compare(capsys, text_file, "goodpeer")
    ours = [g for g in found["groups"] if g["system"] == "stack-mlir"]
    theirs = [g for g in found["groups"] if g["system"] == "goodpeer"]
    assert theirs[0]["source"] == ["m.py:1", "m.py:2"]
    assert ours[0]["id"] in theirs[0]["aligned"]
    assert theirs[0]["id"] in ours[0]["aligned"]


@pytest.mark.usefixtures("third_party")
def test_a_worker_measures_as_this_process_does(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = compare(capsys, text_file, "apartpeer{depth=3}")
    row = row_of(found, "apartpeer{depth=3}")
    assert code == 0
    assert row["ok"]
    assert row["peak_bytes"] == 64
    assert "'depth': 3" in row["note"]
    assert found["groups"][-1]["source"] == ["m.py:1", "m.py:2"]


@pytest.mark.usefixtures("third_party")
def test_a_peer_that_dies_leaves_a_row(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = compare(capsys, text_file, "crashpeer,goodpeer")
    assert code == 1
    assert not row_of(found, "crashpeer")["ok"]
    assert "SIGSEGV" in row_of(found, "crashpeer")["note"]
    assert row_of(found, "goodpeer")["ok"]


@pytest.mark.usefixtures("third_party")
def test_a_missing_peer_exits_with_5_and_the_others_run(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, err = compare(capsys, text_file, "absentpeer,goodpeer")
    assert code == 5
    assert row_of(found, "absentpeer")["note"] == "pip install absent"
    assert row_of(found, "goodpeer")["ok"]
    assert "pip install absent" in err


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(
    ("peer", "note"),
    [("wrongpeer", "disagrees"), ("refusepeer", "no lowering"), ("latepeer", "out of memory")],
)
def test_failures_exit_with_1_and_say_why(
    text_file: str, peer: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = compare(capsys, text_file, f"{peer},absentpeer,goodpeer")
    assert code == 1
    assert not row_of(found, peer)["ok"]
    assert note in row_of(found, peer)["note"]
    assert row_of(found, "goodpeer")["ok"]


@pytest.mark.usefixtures("third_party")
def test_tables_and_page(
    text_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "c.html"
    assert main(["compare", text_file, "--with", "goodpeer", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "vs ours" in out
    assert "m.py:2" in out
    assert "m.py:2" in page.read_text()


@pytest.mark.usefixtures("third_party")
def test_peers_are_read_with_their_options() -> None:
    first, second = parse_backends("goodpeer{a=1, b=x, c=true,d=0.5} , wrongpeer")
    assert first.options == {"a": 1, "b": "x", "c": True, "d": 0.5}
    assert (second.label, second.options) == ("wrongpeer", {})
    for wrong in ("nopeer", "goodpeer{a}", "goodpeer{"):
        with pytest.raises(UsageError):
            parse_backends(wrong)


def test_jax_beside_xla_and_eager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import jax, jax.numpy as jnp\n"
        "def f(w, x):\n"
        "    return jax.nn.softmax(x @ w)\n"
        "def g():\n"
        "    return f, (jnp.ones((8, 8)) * 0.3, jnp.arange(32.0).reshape(4, 8))\n"
    )
    code, found, _ = compare(capsys, f"{path}:g", "xla,eager")
    assert code == 0, found["rows"]
    ways = {(r["system"], r["via"]) for r in found["rows"]}
    assert ways == {
        *(("stack-mlir", "own"), ("xla", "ir"), ("xla", "native"), ("eager", "ir")),
        ("eager", "native"),
    }
    assert all(r["error_vs_eager"] < 1e-5 for r in found["rows"])


def test_a_module_with_weights_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its graph takes weights as arguments, which its user does not give."""
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef net():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()),"
        " (torch.ones(4, 8),)\n"
    )
    code, found, _ = compare(capsys, f"{tmp_path}/net.py:net", "eager")
    assert code == 0
    assert all(r["ok"] for r in found["rows"])
