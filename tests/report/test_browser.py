"""The page in a browser that has no network: choices reach all views, packed texts unfold."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import stack
from stack.report import markup
from stack.report.content import report_of
from stack.report.page import page

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
        report = replace(report_of(run), errors={"hidden": 3e-7})
        made = tmp_path_factory.mktemp("page") / "r.html"
        made.write_text(page(report), encoding="utf-8")
        return made


def dom(path: Path, choice: str, profile: Path, *flags: str) -> str:
    command = [BROWSER, *FLAGS, *flags, f"--user-data-dir={profile}", f"file://{path}#{choice}"]
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


# what a person does, in steps; each leaves a line of what is seen then
VISIT = """
<script>
const seen = [];
const marks = (q) => document.querySelectorAll(q + " [aria-current]").length;
const views = ["#pane-s", "#kernels", "#graph"];
const see = (what) => seen.push([what, ...views.map(marks)].join());
const press = (key, at = document.body) => {
  at.focus();
  at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
};
addEventListener("load", () => setTimeout(() => {
  const source = document.querySelector("#pane-s pre");
  press("ArrowDown", source);
  press("Enter", document.activeElement);
  see("line");
  press("Escape");
  see("nothing");
  document.querySelector("#kernels tr.pick").click();
  see("kernel");
  document.querySelector("#graph .box").dispatchEvent(new Event("click", { bubbles: true }));
  see("box");
  const select = document.querySelector("#pane-a select");
  const before = select.value;
  press("]");
  seen.push(before + " then " + select.value);
  seen.push(decodeURIComponent(location.hash));
  const page = document.documentElement;
  seen.push("too wide by " + Math.max(0, page.scrollWidth - innerWidth));
  document.title = seen.join("; ");
}, 300));
</script>
"""


@pytest.mark.parametrize("width", [1400, 420])
def test_keys_and_clicks_lead_from_line_to_kernel_to_box(
    path: Path, tmp_path: Path, width: int
) -> None:
    visited = tmp_path / "visited.html"
    visited.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{VISIT}</body>"))
    text = dom(visited, "a=stage-canonical", tmp_path / "profile", f"--window-size={width},900")
    seen = text[text.index("<title>") + 7 : text.index("</title>")].split("; ")
    counts = {k: list(map(int, v)) for k, *v in (line.split(",") for line in seen[:4])}
    for what in ("line", "kernel", "box"):
        assert min(counts[what]) >= 1, f"{what} does not reach source, kernels and graph"
    assert counts["nothing"] == [0, 0, 0]
    before, after = seen[4].split(" then ")
    assert before == "stage-canonical"
    assert after != before
    assert f"a={after}" in seen[5], "the address does not hold the view"
    assert "choice=value:" in seen[5]
    assert seen[6] == "too wide by 0"


TOOLS = """
<script>
const told = [];
const count = (q) => document.querySelectorAll(q).length;
addEventListener("load", () => setTimeout(() => {
  const field = document.getElementById("search");
  field.value = "SOFTMAX";
  field.dispatchEvent(new Event("input"));
  told.push(["hits", count("#graph .hit"), count("#kernels .hit"), count("#pane-s .hit")].join());
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  told.push(["now", count(".now")].join());
  field.value = "no such text";
  field.dispatchEvent(new Event("input"));
  told.push(["none", count(".hit"), document.getElementById("found").textContent].join());
  document.getElementById("errors").click();
  told.push(["errors", document.querySelector('#pane-a [data-n="hidden"]').dataset.e].join());
  document.getElementById("wrap").click();
  told.push(["wrap", getComputedStyle(document.querySelector("#pane-a pre")).whiteSpace].join());
  const slider = document.querySelector('[data-steps="pass-views"]');
  slider.value = slider.max;
  slider.dispatchEvent(new Event("input"));
  const shown = [...document.querySelectorAll("#pass-views > .step")].map((e) => !e.hidden);
  told.push(["pass", shown.indexOf(true), shown.filter(Boolean).length, slider.max].join());
  const width = () => document.querySelector(".canvas svg").getBoundingClientRect().width;
  const before = width();
  document.querySelector('[data-zoom="1.25"]').click();
  told.push(["zoom", (width() / before).toFixed(2)].join());
  document.querySelector("#pane-a [data-n=hidden]").dispatchEvent(
    new MouseEvent("mouseover", { bubbles: true, clientX: 5, clientY: 5 }));
  told.push(["hover", document.getElementById("hover").textContent].join());
  told.push(["colour", count("#pane-a .t-call") > 3, count("#pane-s .t-call") > 0].join());
  document.title = told.join("; ");
}, 300));
</script>
"""


def test_search_colours_errors_sliders_and_zoom(path: Path, tmp_path: Path) -> None:
    visited = tmp_path / "visited.html"
    visited.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{TOOLS}</body>"))
    text = dom(visited, "a=stage-canonical", tmp_path / "profile", "--window-size=1400,900")
    shown = text[text.index("<title>") + 7 : text.index("</title>")].split("; ")
    seen = dict(line.split(",", 1) for line in shown)
    boxes, rows, lines = map(int, seen["hits"].split(","))
    assert boxes >= 1 and rows >= 1 and lines >= 1
    assert seen["now"] == "1"
    assert seen["none"] == "0,not found"
    assert seen["errors"] == "3.0e-7"
    assert seen["wrap"] == "pre-wrap"
    at, visible, last = seen["pass"].split(",")
    assert at == last and visible == "1"
    assert seen["zoom"] == "1.25"
    assert "%hidden, error 3e-7" in seen["hover"] and "torch.tanh(x @ w)" in seen["hover"]
    assert "tanh + softmax" in seen["hover"], "the kernel has no name that people know"
    assert seen["colour"] == "true,true"
