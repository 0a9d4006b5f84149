"""Tables and diffs."""

from __future__ import annotations

from stack.explore.diff import diff_texts, summary, without_lines
from stack.explore.dump import op_counts
from stack.explore.kernel_rows import source_text
from stack.explore.table import cut, number, scaled, table


def test_columns_of_numbers_are_flush_right() -> None:
    text = table(["name", "ms"], [["a", 1.5], ["bcd", 100.25], ["e", None]])
    assert text == "\n".join(
        ["name   ms", "----  ----", "a     1.50", "bcd    100", "e        -"]
    ).replace("name   ms", "name    ms")


def test_long_cells_are_cut_but_not_the_last_column() -> None:
    text = table(["a", "b"], [["x" * 90, "y" * 90]])
    assert "y" * 90 in text
    assert "x" * 90 not in text
    assert len(cut("abcdefghij", 7)) == 7


def test_short_numbers() -> None:
    assert [number(v) for v in (0, 1e-5, 0.0123, 1.234, 123.4, 2e7)] == [
        *("0", "1e-05", "0.0123", "1.23", "123", "2e+07"),
    ]
    assert scaled(1.21e9, "B") == "1.21 GB"
    assert scaled(12) == "12"
    assert scaled(None) == "-"


def test_source_lines_of_one_file_stand_together() -> None:
    lines = ["a.py:1 net.x", "a.py:2", "b.py:7", "a.py:3", "a.py:4", "a.py:1"]
    assert source_text(lines) == "a.py:1,2,3+1 b.py:7"
    assert op_counts(["dot", "add", "dot"]) == "dot x2, add"


def test_diff_marks_what_moved() -> None:
    before = "a = 1\nb = 2\nc = 3\nd = 4\n"
    after = "a = 1\nc = 3\nd = 4\nb = 2\ne = 5\n"
    text = diff_texts(before, after, ("x", "y"))
    assert "~b = 2" in text
    assert "+e = 5" in text
    assert "-b" not in text
    assert summary(text) == "1 added, 0 removed, 1 moved"
    assert diff_texts(before, before, ("x", "y")) == ""


def test_source_lines_are_left_out_of_diffs() -> None:
    line = '  %a = f(%b) : f32[2] from "a.py:1", "b \\"q\\".py:2"'
    assert without_lines(line) == "  %a = f(%b) : f32[2]"
    assert without_lines(line + " {(%x: f32[])") == "  %a = f(%b) : f32[2] {(%x: f32[])"
