"""Numbers of printed IR are changed: whatever still verifies may be wrong, but never crashes."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack
import stack.plugins as plugins
from stack.ir import Func
from stack.rewrite import Pipeline

pytest.importorskip("torch_mlir")
torch = pytest.importorskip("torch")
functional = torch.nn.functional
WORKER = Path(__file__).with_name("mutated_text.py")
NUMBER = re.compile(r"(?<![\w.%@\"])-?\d+(?![\w.])")
# those that are no part of a type: constants, extents of loops, attributes
LOOSE = re.compile(r"-?\d+(?=:[iu]\d)|(?<=< )\d+|(?<=[=\[])-?\d+(?=[,\]}])(?=[^:]*\})")
LIMIT = 600  # seconds for all


def programs() -> Iterator[Func]:
    """One of each kind of kernel."""
    x, w = torch.randn(12, 20), torch.randn(20, 24)
    index = torch.tensor([1, 5, 3])
    yield stack.trace(lambda x, w: functional.gelu(x @ w), x, w)
    yield stack.trace(lambda x: torch.softmax(x, -1)[1:9:2], x)
    yield stack.trace(lambda x, i: x[i] + torch.arange(20), x, index)
    yield stack.trace(lambda x: torch.cumsum(functional.pad(x, (1, 2)), 1), x)
    yield stack.trace(lambda x: x.index_add(0, torch.tensor([2, 0]), x[3:5] * 2), x)
    yield stack.trace(lambda x: functional.max_pool1d(x[None], 3)[0].flip(1), x)
    yield stack.trace(lambda x: torch.softmax(x @ x.T, -1) @ x, x)


def texts(seed: int, count: int) -> list[str]:
    """Printed stages with one or two numbers changed."""
    stages = plugins.load("stack.backends", "mlir").lowering.stages
    printed: list[str] = []
    for func in programs():
        printed.append(str(func))
        for name, passes in stages:
            func = Pipeline(passes).run(func).func
            if name in ("fused", "tiled", "loop"):
                printed.append(str(func))
    rng = random.Random(seed)
    return [mutated(rng.choice(printed), rng) for _ in range(count)]


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2))):
        loose = list(LOOSE.finditer(text))
        found = rng.choice(loose if loose and rng.random() < 0.8 else list(NUMBER.finditer(text)))
        old = int(found[0])
        new = rng.choice((0, 1, -1, old + 1, old - 1, old * 2, -old, 3, 31, 4096, 2**31, -(2**40)))
        text = f"{text[: found.start()]}{new}{text[found.end() :]}"
    return text


def outcomes(given: list[str]) -> tuple[dict[int, str], dict[int, str]]:
    """The outcomes of the texts, and the signals that ended the process, by text."""
    told: dict[int, str] = {}
    crashes: dict[int, str] = {}
    left = list(enumerate(given))
    while left:
        done = subprocess.run(
            [sys.executable, str(WORKER)],
            input=json.dumps(left),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        lines: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
        told |= dict(lines)
        left = left[len(lines) :]
        if not left:
            break
        number, _ = left.pop(0)
        assert done.returncode, done.stderr
        why = signal.Signals(-done.returncode).name if done.returncode < 0 else done.stderr[-2000:]
        told[number] = f"ended: {why}"
        if why != "SIGALRM":
            crashes[number] = why
    return told, crashes


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 60), pytest.param(1, 2000, marks=pytest.mark.slow)]
)
def test_what_verifies_does_not_crash(seed: int, count: int) -> None:
    given = texts(seed, count)
    told, crashes = outcomes(given)
    assert not crashes, "\n".join(f"{why}\n{given[i]}" for i, why in crashes.items())
    assert sum(what == "ran" for what in told.values()) > count // 10
    assert "refused" in told.values()
