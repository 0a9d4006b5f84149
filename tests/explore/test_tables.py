"""Tables of commands: they fit the terminal, fold equal layers, and have colours where it has."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.cli import main
from stack.explore.dump import derivations, describe, kernel_table
from stack.explore.layers import base_name, folded, pattern
from stack.explore.node_outcomes import NodeOutcome, fate_table
from stack.explore.retrace import Origin
from stack.explore.table import cut, listing, table
from stack.explore.terminal import Loud, filled, has_colours, viewed
from stack.measure.kernels import kernel_report
from stack.measure.roofline import Ceilings
from stack.measure.timing import ratio_cell
from stack.run.backend import Kernel

WIDTHS = (80, 100, 120, 160)
LAYERS = 12
NUMBER = re.compile(r"\d+(?:\.\d+)*")
LONG = "model.decoder.blocks.{}.attention.projection"


def entry(name: str, module: str, line: int, **more: Any) -> dict[str, Any]:
    fields = {"name": name, "kind": "generated", "source": [f"transformer.py:{line}"],
              "ops": ["dot", "broadcast", "add"], "flops": 1500.0, "bytes": 256.0,
              "modules": [module]}  # fmt: skip
    return {**fields, **more}


def manifest() -> dict[str, Any]:
    """A model of twelve layers, between an embedding and a head that falls back."""
    layers = [
        kernel
        for i in range(LAYERS)
        for kernel in (
            entry("dot_add", LONG.format(i), 42),
            entry("dot_add", f"model.decoder.blocks.{i}.down", 57),
            entry("reduce_mul_sub_add_reduce_mul_sub_add", f"model.decoder.blocks.{i}.norm1", 40),
        )
    ]
    first = entry("gather", "model.words", 12, ops=["gather"], flops=0)
    last = entry("torch.fft", "model.head", 90, kind="fallback", ops=["opaque"])
    stages = [
        {"name": "imported", "file": "01-imported.stack", "pass": "", "changed": True, "ms": 0,
         "ops": 2610, "groups": 0, "rewrites": {}, "notes": []},
        {"name": "streamed", "file": "04-streamed.stack", "changed": True, "ms": 1284.25,
         "pass": "stream{loops=cpu,refuse=[digamma]},unfold,pad_rows,split_reductions{parts=16}",
         "ops": 3690, "groups": 12, "rewrites": {"stream": 12},
         "notes": [f"%out_{i} is streamed over an axis of 32\n  s0 = max_k x_{i}"
                   for i in range(LAYERS)]},
    ]  # fmt: skip
    return {
        "target": "model.py:gpt", "frontend": "torch", "backend": "mlir", "machine": "avx2",
        "stages": stages, "kernels": [first, *layers, last],
        "coverage": {"ops": 2610, "native": 2609, "library": 0, "fallback": 1,
                     "fallback_ops": {"aten.fft_fft": 1}},
    }  # fmt: skip


def wide(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_a_run_fit_and_keep_numbers_whole(
    width: int, columns: pytest.MonkeyPatch
) -> None:
    with viewed(is_whole=True):
        every = set(NUMBER.findall(describe(manifest())))
    columns.setenv("COLUMNS", str(width))
    with viewed(is_whole=False):
        text = describe(manifest())
        tables = kernel_table(manifest())
    assert wide(text) <= width
    sums = {"18", "27", "3.07", "12", "38", "5", "0", "11", "1"}  # of folded rows, and their layers
    assert set(NUMBER.findall(tables)) <= every | sums
    assert "1.5 k" in tables or width == 80


@pytest.mark.parametrize("width", WIDTHS)
def test_any_table_fits(width: int, columns: pytest.MonkeyPatch) -> None:
    columns.setenv("COLUMNS", str(width))
    head = [f"column {i}" for i in range(30)]
    rows = [[f"{i}.{i}" if i % 2 else "name/" * i for i in range(30)] for _ in range(3)]
    sentence = "a sentence that is long " * 20
    with viewed(is_whole=False):
        assert wide(table(head, rows)) <= width
        text = table(["name", "doc"], [["x" * 300, sentence]])
        assert wide(text) <= width
        assert text.count("sentence") == 20, "prose wraps"
        assert wide(listing([("kernel", sentence)])) <= width
        assert wide(filled(sentence)) <= width


def test_hidden_columns_are_named_in_the_last_line(columns: pytest.MonkeyPatch) -> None:
    columns.setenv("COLUMNS", "80")
    head, row = ["name", "file", "ms", "doc"], ["a" * 30, "b" * 30, "1.25", "c d " * 20]
    with viewed(is_whole=False):
        text = table(head, [row], drop=["file"])
    assert text.splitlines()[-1] == "hidden: file (--wide shows all)"
    assert text.splitlines()[0].split() == ["name", "ms", "doc"]
    with viewed(is_whole=True):
        text = table(head, [row], drop=["file"])
    assert "hidden" not in text
    assert all(cell.strip() in text for cell in row)


def test_a_file_or_a_pipe_has_100_columns(columns: pytest.MonkeyPatch) -> None:
    with viewed(is_whole=False):
        assert 80 < wide(kernel_table(manifest())) <= 100
    assert len(table(["a", "b"], [["x", "y" * 200]]).splitlines()[2]) > 200, "outside of commands"


def test_a_cut_leaves_no_part_of_a_number() -> None:
    text = "abc/1234567890/0.0123456789/xyz"
    for width in range(4, len(text)):
        assert len(cut(text, width)) <= width
        assert set(NUMBER.findall(cut(text, width))) <= {"1234567890", "0.0123456789"}
    assert cut("layers.0-11.attn.wq", 16) == "layers...attn.wq"


# ---- equal layers


def test_layer_numbers_of_module_paths() -> None:
    assert pattern("layers.0.attn.wq") == "layers.*.attn.wq"
    assert pattern("layers_7.norm1") == "layers_*.norm1"
    assert folded(f"layers.{i}.attn.wq" for i in range(12)) == "layers.0-11.attn.wq"
    assert folded(["layers.3", "layers.3.up", "layers.1.up"]) == "layers.1,3.up"
    assert folded(["s.0.b.1.up", "s.1.b.0.up", "head"]) == "s.0-1.b.0-1.up, head"
    assert base_name("%transpose_1_1 of x_2.0, s0") == "%transpose of x.0, s0"


def test_kernels_of_equal_layers_are_one_row_with_sums(columns: pytest.MonkeyPatch) -> None:
    columns.setenv("COLUMNS", "200")
    with viewed(is_whole=False):
        text = kernel_table(manifest())
    lines = text.splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines[2:-1]]
    head = re.split(r"\s{2,}", lines[0])
    assert len(rows) == 5
    assert {"calls", "sum flops", "sum bytes", "module"} <= set(head)
    attention = dict(zip(head, rows[1], strict=True))
    assert attention["calls"] == "x 12"
    assert attention["sum flops"] == "18 k"
    assert attention["sum bytes"] == "3.07 kB"
    assert attention["flop/byte"] == "5.86"
    assert attention["module"] == "model.decoder.blocks.0-11.attention.projection"
    assert lines[-1].startswith("38 kernels in 5 rows")
    with viewed(is_whole=True):
        every = kernel_table(manifest())
    assert len(every.splitlines()) == 2 + 38
    assert LONG.format(7) in every


def test_kernels_that_differ_are_not_one_row() -> None:
    held = manifest()
    held["kernels"][4]["flops"] = 7.0
    held["kernels"][7]["source"] = ["other.py:1"]
    held["kernels"][10]["name"] = "dot_add_1"
    assert "38 kernels in 8 rows" in kernel_table(held)
    held["kernels"] = held["kernels"][:4]
    assert "calls" not in kernel_table(held)


def test_times_of_equal_layers_are_summed() -> None:
    kernels = [
        Kernel("dot", "generated", flops=2e5, bytes=1e3, source=("a.py:1",), modules=(f"h.{i}",))
        for i in range(3)
    ]
    ceilings = Ceilings({"f32": 1e12}, {1: 1e9}, 1, "made up")
    text = kernel_report(kernels, [1e-6, 2e-6, 3e-6], ceilings, "f32")
    head, _, row, every, note = text.splitlines()
    assert "sum time" in head
    assert "6 us" in row
    assert "6 us" in every
    assert "100 %" in row
    assert "h.0-2" in row
    assert note == "3 kernels in 1 row, one for all equal layers"


def test_notes_of_equal_layers_are_told_once() -> None:
    with viewed(is_whole=False):
        (note,) = derivations(manifest())
        assert note.startswith("%out_0 is streamed")
        assert note.endswith("(the same holds for %out_1, %out_2, %out_3 and 8 more)")
    with viewed(is_whole=True):
        assert len(derivations(manifest())) == 12


def test_nodes_of_equal_layers_are_one_row() -> None:
    found = [
        NodeOutcome(
            Origin(f"%mul_{i}_{j}", "mul", (f"a.py:1 h.{i}.norm",)), "kernel", (f"%mul_{i}",)
        )
        for i in range(4)
        for j in range(2)
    ]
    with viewed(is_whole=False):
        lines = fate_table(found).splitlines()
        assert [line.split()[0] for line in lines[2:4]] == ["%mul_0_0", "%mul_0_1"]
        assert all("x 4" in line and "h.0-3.norm" in line for line in lines[2:4])
        assert lines[4].startswith("8 nodes in 2 rows")
    with viewed(is_whole=True):
        assert len(fate_table(found).splitlines()) == 10


# ---- colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "is_terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_where_there_are_colours(
    variables: dict[str, str], is_terminal: bool, expected: bool, columns: pytest.MonkeyPatch
) -> None:
    columns.setenv("TERM", "xterm")
    for name, value in variables.items():
        columns.setenv(name, value)
    columns.setattr(sys, "stdout", Terminal() if is_terminal else io.StringIO())
    assert has_colours() == expected


def test_fallbacks_and_lost_comparisons_are_red(columns: pytest.MonkeyPatch) -> None:
    columns.setenv("FORCE_COLOR", "1")
    with viewed(is_whole=False):
        text = describe(manifest())
        ratios = table(["case", "ratio"], [["a", ratio_cell("0.50x")], ["b", ratio_cell("2.00x")]])
    red = re.findall(r"\x1b\[31m([^\x1b]*)\x1b\[0m", text)
    assert red[0].strip() == "fallback"
    assert red[1].startswith("coverage: 2610 ops")
    assert len(red) == 2
    assert re.findall(r"\x1b\[31m\s*([^\x1b]*)\x1b\[0m", ratios) == ["0.50x"]
    assert isinstance(ratio_cell("0.99x (0.98 to 1.00)"), Loud)
    assert not isinstance(ratio_cell("1.00x (0.98 to 1.00)"), Loud)
    assert not isinstance(ratio_cell("0.50x (0.20 to 1.00, noisy)"), Loud)
    assert not isinstance(ratio_cell("0.99x", is_ours=False), Loud)
    assert not isinstance(ratio_cell("-"), Loud)
    assert ratio_cell(None) == "-"
    columns.setenv("NO_COLOR", "1")
    with viewed(is_whole=False):
        assert "\x1b" not in describe(manifest())


TEXT = """func @f(%x: f32[8]) -> (f32[8]) at tensor {
  %y = exp(%x) : f32[8] from "m.py:1"
  %z = opaque(%y) {call="[]", effect=0, target="torch:aten.sin.default"} : f32[8] from "m.py:2"
  return %z
}
"""


def test_no_colours_in_files(
    tmp_path: Path, columns: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns.setenv("FORCE_COLOR", "1")
    (tmp_path / "f.stack").write_text(TEXT)
    assert main(["dump", str(tmp_path / "f.stack"), "-o", str(tmp_path / "r")]) == 0
    assert "\x1b[31m" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html")]) == 0
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(written) > 5
    assert all(b"\x1b" not in p.read_bytes() for p in written)


# ---- commands


@pytest.mark.each
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "command",
    ["passes", "stages", "ops", "backends", "glossary", "env", "targets", "targets sm_90"],
)
def test_tables_of_what_is_installed_fit(
    command: str, width: int, columns: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns.setenv("COLUMNS", str(width))
    assert main(command.split()) == 0
    assert wide(capsys.readouterr().out) <= width
    assert main([*command.split(), "--wide"]) == 0
    assert "--wide shows all" not in capsys.readouterr().out


def test_an_unknown_word_lists_the_nearest_five(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary", "tilee"]) == 2
    said = capsys.readouterr().err
    (near,) = re.findall(r"are: (.*); `stackc glossary` lists all", said)
    assert len(near.split(", ")) == 5
    assert "tile" in near.split(", ")
    assert len(said) < 300
