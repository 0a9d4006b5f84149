"""The page: whole, without addresses, the same each time, and readable without seeing."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import stack
from stack.cli import main
from stack.explore.saved_run import load_run
from stack.report.content import report_of
from stack.report.page import page

VOID = {"meta", "br", "img", "input"}
torch = pytest.importorskip("torch")


def layer(x, w):
    hidden = torch.tanh(x @ w)
    return torch.softmax(hidden, -1)


class Reader(HTMLParser):
    """Tags in order, what is open, ids and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        held = {k: v or "" for k, v in attrs}
        self.attributes += held.items()
        if "id" in held:
            self.ids.append(held["id"])
        if "href" in held:
            self.links.append(held["href"])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run() -> stack.run.record.Run:
    return stack.compile(layer, torch.randn(4, 8), torch.randn(8, 8)).run


@pytest.fixture(scope="module")
def text(run: stack.run.record.Run) -> str:
    return page(report_of(run))


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    return Reader(text)


def test_it_is_whole(read: Reader) -> None:
    assert not read.open
    assert max(Counter(read.ids).values()) == 1, "an id occurs twice"
    missing = {link for link in read.links if link.removeprefix("#") not in read.ids}
    assert not missing


def test_it_names_no_address(read: Reader, text: str) -> None:
    assert all(link.startswith("#") for link in read.links)
    assert not [v for k, v in read.attributes if k in ("src", "srcset", "action", "data")]
    assert "default-src &#x27;none&#x27;" in text
    assert "@import" not in text
    assert "url(" not in re.sub(r"url\(#\w+\)", "", text)


def test_every_drawing_is_a_table_too(read: Reader) -> None:
    assert read.tags["figure"] >= 2
    assert read.tags["svg"] == read.tags["figure"]
    assert ("role", "img") in read.attributes
    assert read.tags["table"] >= read.tags["figure"]
    assert read.tags["caption"] == read.tags["table"]


def test_it_links_source_values_and_kernels(text: str, run: stack.run.record.Run) -> None:
    assert "hidden = torch.tanh(x @ w)" in text  # the user's own line
    line = re.search(r'data-l="(\d+)" data-s="\1" data-k="([\d ]+)">[^<]*tanh', text)
    assert line is not None
    place = f"test_page.py:{layer.__code__.co_firstlineno + 1}"
    kernels = [i for i, k in enumerate(run.kernels) if place in k.source]
    assert [int(k) for k in line[2].split()] == kernels
    assert re.search(rf'data-n="hidden" data-s="{line[1]}" data-k="[{line[2]}]"', text)


def test_passes_that_were_skipped_are_listed(text: str) -> None:
    assert re.search(r"<summary>\d+ passes had nothing to do</summary>", text)
    assert "<strong>unfold</strong> in streamed: no conv in the program" in text


def test_the_same_run_gives_the_same_bytes(tmp_path: Path, run: stack.run.record.Run) -> None:
    run.save(tmp_path / "r")
    first, second = (page(report_of(load_run(tmp_path / "r"))) for _ in range(2))
    assert first == second
    assert len(first) < 200_000
    saved = load_run(tmp_path / "r")
    assert "hidden = torch.tanh(x @ w)" in saved.sources["test_page.py"]


def test_report_of_a_saved_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: stack.run.record.Run
) -> None:
    run.save(tmp_path / "r")
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "r"), "-o", str(out)]) == 0
    assert "MB" in capsys.readouterr().err
    assert not Reader(out.read_text(encoding="utf-8")).open


def test_report_with_times(tmp_path: Path) -> None:
    file = tmp_path / "f.stack"
    file.write_text(
        "func @f(%x: f32[64, 64], %w: f32[64, 64]) -> (f32[64, 64]) at tensor {\n"
        '  %a = dot(%x, %w) {rule="m k, k n -> m n"} : f32[64, 64]\n'
        "  return %a\n}\n"
    )
    out = tmp_path / "f.html"
    assert main(["report", str(file), "-o", str(out), "--profile"]) == 0
    text = out.read_text(encoding="utf-8")
    assert "share of roof" in text
    assert "roofline of this run" in text
    assert "±" in text
