"""Every example of every `--help` exists as it is written, and those that take seconds run."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from stack.cli import build_parser, main

pytest.importorskip("torch")
PARSER = build_parser()
(CHOICES,) = [a for a in PARSER._actions if isinstance(a, argparse._SubParsersAction)]
# what an example of a help names, and what this test has under another name
HERE = {
    "demos/transformer.py:llama_block": "model.py:net",
    "demos/transformer.py:gpt2": "model.py:net",
    "transformer.py:42": "model.py:6",
    "block.py:42": "model.py:6",
    "softmax": "out",
    "y.step2": "out.step2",
    "kernel_3": "mul_reduce_sub_exp",
    "k3": "mul_reduce_sub_exp",
}
# minutes, a machine that may not be here, a server
NOT_RUN = ("bench", "calibrate", "live", "compare", "here.toml", "--frontend jax", "--sharding")
NOT_RUN += ("watch", "~/", "--profile")  # endless, elsewhere, in tests/cli/test_cli.py
NOT_RUN += ("check-rule",)  # of rules that a user writes; tests/testing/test_check_rule.py
NOT_RUN += ("reduce", "mine.py:Mine@fused", "'y: m=")  # of programs that are wrong, or others
NOT_RUN += ("dot_add", "net.py:net -i 'f32[8]'", "edited.stack", "r3/joint")


def examples() -> list[str]:
    """Each without the words beside it."""
    found: list[str] = []
    for parser in CHOICES.choices.values():
        for line in (parser.description or "").splitlines():
            if line.strip().startswith("stackc "):
                found.append(re.split(r"\s{2,}| > ", line.strip())[0])
    return list(dict.fromkeys(found))


def argv_of(example: str) -> list[str]:
    return shlex.split(example.rpartition("| ")[2])[1:]


@pytest.mark.parametrize("example", examples())
def test_examples_parse(example: str) -> None:
    PARSER.parse_args(argv_of(example))


def test_every_command_has_examples() -> None:
    shown = {argv_of(e)[0] for e in examples()}
    assert set(CHOICES.choices) <= shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, three runs and a file of IR text, as examples name them."""
    root = tmp_path_factory.mktemp("examples")
    (root / "model.py").write_text(
        "import torch\n\n\ndef net(x):\n    y = torch.tanh(x)\n"
        "    out = torch.softmax(y.sum(0, keepdim=True) * x, -1)\n    return out\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name in ("r1", "r2"):
            assert main(["dump", "model.py:net", "-i", "f32[8,128]", "-o", name]) == 0
        gpu = ["--backend", "triton", "--target", "sm_90", "--to", "tiled"]
        assert main(["dump", "model.py:net", "-i", "f32[8,128]", *gpu, "-o", "g1"]) == 0
        (root / "block.stack").write_text((root / "r1" / "01-imported.stack").read_text())
    return root


@pytest.mark.parametrize("example", [e for e in examples() if not any(n in e for n in NOT_RUN)])
def test_examples_run(
    example: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    argv = argv_of(example)
    if argv[0] == "opt" and argv[1] == "-":
        argv[1] = "r1:imported"  # the pipe before it shows that
    argv = [HERE.get(word, word) for word in argv]
    if argv[1:2] == ["model.py:net"] and "-i" not in argv:
        argv += ["-i", "f32[8,128]"]
    if "--train" in argv or "--mesh" in argv:
        pytest.skip("of another program")
    if argv[0] == "completion":
        pytest.importorskip("shtab")
    code = main(argv)
    out = capsys.readouterr()
    # diff says by its code whether two stages differ
    assert code in ((0, 1) if argv[0] == "diff" else (0,)), out.err
    assert argv[0] == "diff" or out.out or out.err  # equal stages have no diff
