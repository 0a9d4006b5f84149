"""READMEs of operators: examples run, names and files are what there is, sources are named."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path

import pytest

from stack.hosted import declared, registry

ROOT = Path(__file__).parents[2]
FAMILIES = ("activation", "attention", "lora", "loss", "moe", "norm", "qgemm", "scan")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that examples declare are of this test alone."""
    declared()
    monkeypatch.setattr(registry, "_DECLARED", dict(registry._DECLARED))


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_and_names(family: str) -> None:
    file = ROOT / "ops" / family / "README.md"
    failed, tried = doctest.testfile(str(file), module_relative=False)
    assert tried and not failed
    text = file.read_text(encoding="utf-8")
    own = {n.partition(".")[2] for n in declared() if n.startswith(f"{family}.")}
    own = {n for n in own if not n.endswith("_gradient")}
    assert own <= set(re.findall(r"\w+", text)), own - set(re.findall(r"\w+", text))
    for name in re.findall(r"`(\w+\.py|\w+/)`", text):
        assert (file.parent / name).exists(), name


def test_declarations_run(tmp_path: Path) -> None:
    """The operator of `stack/hosted/README.md`, in the four languages, and its calls on a CPU."""
    for needed in ("torch", "triton", "cuda.core"):
        pytest.importorskip(needed)
    text = (ROOT / "stack" / "hosted" / "README.md").read_text(encoding="utf-8")
    file = tmp_path / "declared.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)))
    made = runpy.run_path(str(file))
    assert [(k.name, k.kind) for k in made["kept"].run.kernels][1] == ("mine.saturate.c", "hand")
    assert made["CUBE"].cubin("sm_90")[:4] == b"\x7fELF"
    assert [k.name for k in made["cube"].kernels] == ["nvrtc", "triton"]


@pytest.mark.parametrize("family", [*FAMILIES, "gemm"])
def test_what_limits_it_and_where_it_is_from(family: str) -> None:
    text = (ROOT / "ops" / family / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\*\*What limits (it|them)\*?\*?", text)
    assert re.search(r"20[012]\d", text), "a source has a year"
