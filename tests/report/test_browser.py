"""The page in a browser that has no network: choices reach all views, packed texts unfold."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import stack
from stack.report import markup

torch = pytest.importorskip("torch")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(
    not BROWSER, reason="no Chromium here; test_page reads the structure"
)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--dump-dom"),
)


def layer(x, w):
    hidden = torch.tanh(x @ w)
    return torch.softmax(hidden, -1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = stack.compile(layer, torch.randn(4, 8), torch.randn(8, 8)).run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markup, "PLAIN_LIMIT", 4_000)
        return run.report(tmp_path_factory.mktemp("page") / "r.html")


def dom(path: Path, choice: str, profile: Path) -> str:
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", f"file://{path}#{choice}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    return done.stdout


def marked(text: str) -> list[str]:
    return re.findall(r'<(\w+)[^>]*aria-current="true"', text)


def test_a_value_is_marked_in_every_view(path: Path, tmp_path: Path) -> None:
    text = dom(path, "choice=value%3Ahidden&a=stage-canonical", tmp_path)
    assert re.search(r'<i[^>]*data-l="\d+"[^>]*aria-current', text), "not in the source"
    assert re.search(r'<i[^>]*data-n="hidden"[^>]*aria-current', text), "not in the stage"
    assert {"i", "tr", "g"} <= set(marked(text)), "not in the kernels or the graph"
    assert "1 value of view a" in text


def test_nothing_is_marked_without_a_choice(path: Path, tmp_path: Path) -> None:
    assert not marked(dom(path, "", tmp_path))


def test_packed_texts_unfold(path: Path, tmp_path: Path) -> None:
    assert 'data-packed="' in path.read_text(encoding="utf-8")
    text = dom(path, "a=stage-asm", tmp_path)
    view = text[text.index('id="pane-a"') : text.index('id="pane-b"')]
    assert "\tret" in view
    assert "shown where scripts run" not in view
