"""`stackc targets`, `stackc calibrate`, and `--target`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.cli import main
from stack.target import Cpu, load
from stack.target.files import save

MODEL = "import torch\n\ndef rows(x):\n    return torch.softmax(x, -1)\n"


@pytest.fixture
def model(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:rows"


def test_targets_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("sm_80", "sm_90", "sm_100", "avx2", "avx512", "neon"))
    assert main(["targets", "sm_90", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert found["numbers"]["processors"] == {"value": 132, "unit": "", "source": "datasheet"}
    assert found["numbers"]["launch"]["unit"] == "s"
    assert main(["targets", "sm_75"]) == 0  # the numbers of the oldest there is
    assert main(["targets", "sm_9"]) == 2
    assert main(["targets", "h100"]) == 2


@pytest.mark.parametrize("name", ["avx2", "neon"])
def test_dump_prints_for_a_cpu_that_is_not_here(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch_mlir")
    folder = tmp_path / "r"
    argv = ["dump", model, "-i", "f32[8,100]", "--frontend", "torch", "--target", name, "--json"]
    assert main([*argv, "-o", str(folder)]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["machine"] == name
    stages = {s["name"]: (folder / s["file"]).read_text() for s in manifest["stages"]}
    told = {"avx2": '"+avx2"', "neon": '"+neon"'}[name]
    assert told in stages["mlir"]
    assert "target_features" in stages["llvm"]
    if name == "avx2" and "no disassembly" not in stages["asm"]:
        assert "%ymm" in stages["asm"]


def test_a_target_that_this_cpu_does_not_run_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch_mlir")
    text = load("avx2")
    assert isinstance(text, Cpu)
    path = tmp_path / "odd.toml"
    save(text, path)
    path.write_text(path.read_text().replace('"fma"', '"fma", "no-such-thing"'))
    argv = ["compare", model, "-i", "f32[8,100]", "--frontend", "torch", "--with", "eager"]
    assert main([*argv, "--target", str(path)]) == 2
    assert "it has no no-such-thing" in capsys.readouterr().err


def test_opt_takes_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.stack"
    path.write_text(
        "func @f(%x: bf16[4096, 4096], %y: bf16[4096, 4096]) -> (bf16[4096, 4096]) at tensor {\n"
        '  %z = dot(%x, %y) {rule="m k, k n -> m n"} : bf16[4096, 4096]\n  return %z\n}\n'
    )
    argv = ["opt", str(path), "--pass-pipeline=fuse,schedule,blocks", "--target"]
    for name, count in (("sm_80", 108), ("sm_100", 148)):
        assert main([*argv, name]) == 0
        assert f"programs={count}" in capsys.readouterr().out
    assert main([*argv, "avx2"]) == 2
    assert "'avx2' is a CPU, and this is for GPUs" in capsys.readouterr().err


@pytest.mark.slow
def test_calibrate_writes_what_target_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--target", "generic", "-o", str(path)]) == 0
    capsys.readouterr()
    found = load(str(path))
    assert isinstance(found, Cpu)
    assert found.name == "here"
    assert found.arch == "native"
    assert found.memory_rate != load("generic").memory_rate
    assert found.sources["clock"].startswith("as generic: ")
