"""Draws docs/pipeline.svg: one softmax in six stages, with the text that the compiler printed.

`python docs/pipeline.py` compiles the program for AVX2 and writes the picture. One colour per
operation follows it from the source line to the instructions.
"""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import stack
from stack.run.record import Run

SOURCE = """\
import torch


def softmax(x):
    return torch.softmax(x, -1)
"""
OUT = Path(__file__).with_name("pipeline.svg")
COLOURS = {  # Okabe and Ito: distinguishable for colour-blind readers
    r"kind=\"max\"|\bmax\(|vmaxps": "#0072b2",
    r"\bsub\(|\bexp\(|vsubps|stage exp": "#b35900",
    r"kind=\"sum\"|\badd\(|vaddps|rfactor": "#007a5a",
    r"\bdiv\(|vdivps": "#a3307a",
}
WIDTH, PANEL, GAP, LINE, HEAD = 940, 458, 24, 14, 30


class Panel(NamedTuple):
    """One stage: its name, what happened in it, and lines of its text."""

    name: str
    what: str
    lines: Sequence[str]


def main() -> int:
    """Compile, and write the picture."""
    OUT.write_text(picture(panels()), encoding="utf-8")
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")
    return 0


def panels() -> list[Panel]:
    """The stages of a softmax that was compiled just now."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.py"
        file.write_text(SOURCE, encoding="utf-8")
        run = compiled(file)
    imported = body(run["imported"].text)
    fused = body(run["fused"].text)
    steps = str(run.steps("softmax")).splitlines()
    return [
        Panel("net.py", "the program", SOURCE.splitlines()[3:]),
        Panel("imported", "one node per op of the IR", imported),
        Panel("fused", "nodes that share a kernel are one group", fused),
        Panel("--steps", "the loop nest, rewritten step by step", steps),
        Panel("loop", "vectors of 32 numbers, threads, local memory", loops(run["loop"].text)),
        Panel("asm", "AVX2 instructions of the three loops", instructions(run["asm"].text)),
    ]  # fmt: skip


def compiled(file: Path) -> Run:
    """The record of a compilation for AVX2."""
    import torch

    softmax = runpy.run_path(str(file))["softmax"]
    return stack.compile(softmax, torch.zeros(64, 1000), target="avx2").run


def body(text: str) -> list[str]:
    """The nodes of a function without source lines, and a group without its attributes."""
    found = re.sub(r' from "[^"]*"', "", text).splitlines()[1:-2]
    return [
        line[2:].replace(' {kind="reduction", name="reduce_sub_exp_div"}', "") for line in found
    ]


def loops(text: str) -> list[str]:
    """The loops of the kernel, and what they compute."""
    wanted = r"= loop\(|= (load|max|sub|exp|add|store|div)\([^)]*\) : f32<32>|store\(%keep"
    found: list[str] = []
    for line in text.splitlines():
        if re.search(wanted, line):
            short = re.sub(r" : [^{]*(?=\{|$)", " ", line)
            short = re.sub(r'\{kind="(\w+)"\} \{\((%[\w.]+ < \d+).*', r"\1 (\2)", short)
            found.append(short[4:].rstrip())
    return found


def instructions(text: str) -> list[str]:
    """Three vector instructions of each operation, from the loops over a row."""
    lines = [re.sub(r"^\s*[0-9a-f]+:\s*", "", line).expandtabs() for line in text.splitlines()]
    start = next(n for n, line in enumerate(lines) if re.match(r"vsubps.*ymm", line))
    end = next(n for n in range(start, len(lines)) if lines[n].startswith("jle"))
    found: list[str] = []
    for name, part in (
        ("vmaxps", lines[:start]),
        ("vsubps", lines[start:]),
        ("vaddps", lines[end - 1 : start : -1]),  # the last ones: exp adds, too
        ("vdivps", lines[::-1]),
    ):
        found += [line for line in part if line.startswith(name) and "ymm" in line][:3]
        found.append("...")
    return found[:-1]


def picture(stages: Sequence[Panel]) -> str:
    """All panels, two in a row."""
    parts: list[str] = []
    top = 12
    for n in range(0, len(stages), 2):
        row = stages[n : n + 2]
        height = HEAD + 14 + LINE * max(len(p.lines) for p in row)
        for column, panel in enumerate(row):
            parts.append(drawn(panel, n + column + 1, column * (PANEL + GAP), top, height))
        parts.append(arrow(PANEL + 4, top + height / 2, GAP - 8))
        top += height + 14
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    title = "<title>A softmax from PyTorch to AVX2 in six stages</title>"
    paper = f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    return "\n".join([head, title, paper, *parts, "</svg>", ""])


def drawn(panel: Panel, number: int, x: float, y: float, height: float) -> str:
    """One panel."""
    parts = [
        f'<rect x="{x + 0.5}" y="{y}" width="{PANEL - 1}" height="{height}" rx="5" fill="#f7f8fa"'
        ' stroke="#c9ced6"/>',
        f'<text x="{x + 12}" y="{y + 20}" font-family="sans-serif" font-size="12.5" fill="#1c2430">'
        f'<tspan font-weight="bold">{number} {escape(panel.name)}</tspan>'
        f'<tspan fill="#5a6472">  {escape(panel.what)}</tspan></text>',
    ]
    for n, line in enumerate(panel.lines):
        at = y + HEAD + 10 + LINE * n
        colour = next((c for key, c in COLOURS.items() if re.search(key, line)), "#1c2430")
        parts.append(
            f'<text x="{x + 12}" y="{at}" xml:space="preserve" fill="{colour}"'
            ' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="10.5">'
            f"{escape(line)}</text>"
        )
    return "\n".join(parts)


def arrow(x: float, y: float, length: float) -> str:
    """From a panel to the one beside it."""
    return (
        f'<path d="M{x} {y} h{length - 6} m-5 -5 l6 5 l-6 5" fill="none" stroke="#5a6472"'
        ' stroke-width="1.6"/>'
    )


if __name__ == "__main__":
    sys.exit(main())
