"""The command line from the outside: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
import stack.plugins as plugins
from stack.cli import build_parser, main
from stack.errors import UsageError
from stack.ir.files import CONSTANTS

PROGRAM = """
import jax
import jax.numpy as jnp

def mlp(w, x):
    h = jnp.tanh(x @ w)
    return jax.nn.softmax(h, axis=-1)

def factory():
    return mlp, (jnp.ones((8, 16)), jnp.ones((4, 8)))

def odd(x):
    return jnp.fft.fft(x + 1.0)

def odd_factory():
    return odd, (jnp.ones((8,)),)

def broken():
    raise RuntimeError("no weights here")

not_a_pair = lambda: 7
number = 3
"""

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8] from "model.py:3 net.scale"
  %y = mul(%x, %wide) : f32[4, 8] from "model.py:3 net.scale"
  %z = mul(%y, 1.0:f32) : f32[4, 8] from "model.py:4 net"
  %e = exp(%z) : f32[4, 8] from "model.py:5 net"
  return %e
}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the text program, saved."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "f.stack").write_text(TEXT)
    assert main(["dump", str(folder / "f.stack"), "-o", str(folder / "run")]) == 0
    return folder / "run"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(argv)
    done = capsys.readouterr()
    return code, done.out, done.err


# ---- dump


def test_dump_prints_the_tables_and_writes_the_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    code, out, err = run(capsys, "dump", f"{model}:factory", "-o", str(folder))
    assert code == 0
    assert "pass pipeline" in out
    assert "coverage:" in out
    assert "0 fallback" in out
    assert f"wrote {folder}" in err
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == "stack.run/1"
    assert manifest["frontend"] == "jax"
    for stage in manifest["stages"]:
        assert {"name", "file", "pass", "changed", "ms", "ops", "groups"} <= set(stage)
        assert (folder / stage["file"]).is_file()
    for kernel in manifest["kernels"]:
        assert {"name", "file", "stage_node", "source", "ops", "flops", "bytes", "kind"} <= set(
            kernel
        )
        assert kernel["kind"] in ("generated", "library", "fallback")
    names = [s["name"] for s in manifest["stages"]]
    assert names[:3] == ["captured", "imported", "canonical"]


def test_dump_json_is_alone_on_stdout(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "dump", f"{model}:factory", "--json")
    assert code == 0
    assert json.loads(out)["schema"] == "stack.run/1"


def test_dump_to_a_stage_prints_it_and_it_parses(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "dump", f"{model}:factory", "--to", "fused")
    assert code == 0
    func = stack.parse(out[out.index("func @") :])
    stack.verify(func)
    assert any(n.op == "fusion" for n in func.nodes)


def test_dump_to_an_unknown_stage(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "dump", f"{model}:factory", "--to", "fussed")
    assert code == 2
    assert "fused" in err


def test_dump_of_a_function_with_inputs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("dump", f"{model}:mlp", "-i", "f32[8,16]", "-i", "f32[4,8]", "--to", "imported")
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "f32[4, 16]" in out


def test_dump_strict_lists_every_unsupported_op(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "dump", f"{model}:odd_factory", "--strict")
    assert code == 3
    assert "fft" in err
    assert "model.py:" in err


def test_dump_for_a_gpu_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "dump", f"{model}:factory", "--target", "sm_90")
    assert code == 2
    assert "'sm_90' is a GPU, and mlir prints for CPUs: amx, avx2, avx512" in err


def test_stages_are_the_same_on_a_second_dump(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert run(capsys, "dump", f"{model}:factory", "-o", str(tmp_path / name))[0] == 0
    code, out, _ = run(capsys, "diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 0, out
    assert "differs" not in out


def test_dump_with_other_passes(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("dump", text_file, "--passes", "canonicalize", "--to", "passes")
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "1.0:f32" not in out


def test_dump_of_a_training_step(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("dump", f"{model}:factory", "--train", "--json", "-o", str(tmp_path / "t"))
    code, out, _ = run(capsys, *argv)
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == "stack.runs/1"
    assert document["runs"]["train"]["coverage"]["fallback"] == 0
    assert (tmp_path / "t" / "manifest.json").is_file()
    func = stack.parse((tmp_path / "t" / "01-imported.stack").read_text())
    assert [str(r.type) for r in func.results] == ["f32[4, 16]", "f32[8, 16]", "f32[4, 8]"]


def test_dump_of_a_torch_training_step_shows_the_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "torch_net.py"
    path.write_text(
        "import torch\nnet = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh())\n"
    )
    folder = tmp_path / "t"
    argv = ("dump", f"{path}:net", "-i", "f32[2,8]", "--train", "-o", str(folder))
    code, out, _ = run(capsys, *argv)
    assert code == 0
    for role in ("joint", "forward", "backward"):
        assert f"({role})" in out
        assert (folder / role / "manifest.json").is_file()
    assert "kept for the backward pass: 2 inputs, 1 value more" in out
    joint, forward, backward = (
        stack.parse(next((folder / d).glob(f"*-{s}.stack")).read_text())
        for d, s in (("joint", "joint"), ("forward", "imported"), ("backward", "imported"))
    )
    assert len(joint.results) == 4
    assert len(forward.results) == 1
    assert len(backward.results) == 3
    partitioned = stack.parse(next((folder / "joint").glob("*-partitioned.stack")).read_text())
    assert [n.attrs["name"] for n in partitioned.nodes if n.op == "call"] == ["forward", "backward"]


def test_explain_says_what_was_kept_at_what_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gate.py"
    path.write_text(
        "import torch\n\n\ndef gate(x, w):\n    h = x @ w\n    return (torch.sigmoid(h) * h) @ w\n"
    )
    folder = tmp_path / "t"
    inputs = ("-i", "f32[16,32]", "-i", "f32[32,32]", "--frontend", "torch")
    code, _, err = run(capsys, "dump", f"{path}:gate", *inputs, "--train", "-o", str(folder))
    assert code == 0, err
    code, out, _ = run(capsys, "explain", str(folder / "joint"), "gate.py:5")
    assert code == 0
    assert "%h is kept: 4.1 kB to write and read, recomputed never" in out
    code, out, _ = run(capsys, "explain", str(folder / "joint"), "sigmoid")
    assert code == 0
    assert "%mul is kept: 2.05 kB to read, recomputed" in out
    assert "%sigmoid is recomputed:" in out
    assert ", kept 4.1 kB" in out


def test_dump_with_a_profile(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "dump", text_file, "--profile")
    assert code == 0
    assert "of roof" in out
    assert " us" in out
    code, _, err = run(capsys, "dump", text_file, "--profile", "--to", "fused")
    assert (code, "--to" in err) == (2, True)


# ---- targets


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("facory", "did you mean factory"),
        ("number", "cannot be called"),
        ("broken", "no weights here"),
        ("not_a_pair", "did not return (callable, args)"),
        ("mlp", "needs inputs"),
    ],
)
def test_wrong_names_say_what_would_do(
    model: str, name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "dump", f"{model}:{name}")
    assert code == 2
    assert expected in err


def test_a_file_without_a_name_lists_its_names(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "dump", model)
    assert code == 2
    assert "factory" in err


def test_unknown_frontend_and_backend(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "dump", f"{model}:factory", "--frontend", "tf")
    assert (code, "torch" in err) == (2, True)
    code, _, err = run(capsys, "dump", f"{model}:factory", "--backend", "gcc")
    assert (code, "mlir" in err) == (2, True)


def test_a_missing_backend_names_what_to_install(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stack.run.backend import Backend

    absent = Backend("mlir", compile=_never, missing=lambda: "pip install 'x[mlir]'")
    original = plugins.load

    def load(group: str, name: str) -> Any:
        return absent if (group, name) == ("stack.backends", "mlir") else original(group, name)

    monkeypatch.setattr(plugins, "load", load)
    code, _, err = run(capsys, "dump", f"{model}:factory")
    assert code == 5
    assert "pip install 'x[mlir]'" in err


def _never(func: Any, options: Any) -> Any:
    raise AssertionError("compiled")


# ---- show, diff, where, explain


def test_show(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", str(saved))
    assert (code, "coverage:" in out) == (0, True)
    code, out, _ = run(capsys, "show", str(saved), "imported")
    assert out == TEXT
    code, out, _ = run(capsys, "show", str(saved), "imported", "--no-lines")
    assert " from " not in out
    code, _, err = run(capsys, "show", str(saved), "fuzed")
    assert (code, "fused" in err) == (2, True)
    code, _, err = run(capsys, "show", str(saved), "--kernel", "nope")
    assert (code, "no kernel" in err) == (2, True)
    for kernel in json.loads((saved / "manifest.json").read_text())["kernels"]:
        code, out, _ = run(capsys, "show", str(saved), "--kernel", kernel["name"])
        assert code == 0
        assert out


def test_every_ir_stage_of_a_run_parses_back(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in saved.glob("*.stack"):
        assert str(stack.parse(path.read_text())) == path.read_text()


def test_diff_shows_what_a_stage_changed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "diff", f"{saved}:imported", f"{saved}:canonical")
    assert code == 1
    assert any(line.startswith("-") and "1.0:f32" in line for line in out.splitlines())
    assert "removed" in err
    assert run(capsys, "diff", f"{saved}:imported", "canonical") == (code, out, err)
    code, out, _ = run(capsys, "diff", f"{saved}:imported", f"{saved}:imported")
    assert (code, out) == (0, "")


def test_where_and_back(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "where", str(saved), "model.py:5", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["source"] == ["model.py:5 net"]
    assert [n["node"] for n in found["stages"]["imported"]] == ["e"]
    assert found["kernels"]
    code, out, _ = run(capsys, "where", str(saved), found["kernels"][0], "--json")
    assert "model.py:5 net" in json.loads(out)["source"]
    code, out, _ = run(capsys, "where", str(saved), "y")
    assert "net.scale" in out
    code, out, _ = run(capsys, "where", str(saved), "scale")
    assert "%wide" in out
    code, _, err = run(capsys, "where", str(saved), "model.py:99")
    assert (code, "model.py:5" in err) == (2, True)


def test_explain_names_the_rule(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", str(saved), "model.py:5")
    assert code == 0
    assert "group" in out


# ---- opt, run


def test_opt_prints_ir_alone(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("opt", text_file, "--pass-pipeline=canonicalize", "--check", "--print-changed")
    code, out, err = run(capsys, *argv)
    assert code == 0
    assert str(stack.parse(out)) == out
    assert "1.0:f32" not in out
    assert "canonicalize: changed" in err
    assert "largest relative error" in err


def test_only_passes_that_change_something_print(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And each prints once, what it made: `canonicalize` the second time has nothing to do."""
    pipeline = "--pass-pipeline=inline,canonicalize,canonicalize,fuse"
    code, out, err = run(capsys, "opt", text_file, pipeline, "--print-changed")
    assert code == 0
    printed = [line for line in err.splitlines() if line.startswith("//")]
    assert len(printed) == err.count("func @") == 2, err
    assert "canonicalize" in printed[0] and "fuse" in printed[1]
    assert err.rstrip().endswith(out.rstrip())


def test_opt_without_fuel_changes_nothing(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("opt", text_file, "--pass-pipeline=canonicalize", "--fuel", "0")
    _, out, _ = run(capsys, *argv)
    assert out == TEXT


def test_opt_on_bad_text_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.stack"
    path.write_text(TEXT.replace("mul(%x, %wide)", "mul(%x %wide)"))
    code, _, err = run(capsys, "opt", str(path), "--pass-pipeline=fold")
    assert code == 2
    assert "line 3, column" in err
    assert "bad.stack" in err


def test_opt_on_a_stage_of_a_run(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "opt", f"{saved}:fused", "--pass-pipeline=unfuse")
    assert code == 0
    assert "fusion(" not in out


def test_opt_with_an_unknown_pass(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "opt", text_file, "--pass-pipeline=canonicalise")
    assert code == 2
    assert "canonicalize" in err


def test_a_pass_that_breaks_the_ir_exits_with_4(
    text_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import dataclass

    from stack.ir import Block, Func, Node
    from stack.ir.types import tensor
    from stack.rewrite import Log, Pass

    @dataclass(frozen=True)
    class Break(Pass):
        name = "break"

        def run(self, func: Func, log: Log) -> Func:
            last = func.results[0]
            wrong = Node("exp", last.args, {}, tensor("f32", 3))
            lines = {wrong: func.body.locs[last]}
            return Func(func.name, Block(func.params, [wrong], {wrong: "bad"}, lines))

    original = plugins.load

    def load(group: str, name: str) -> Any:
        return Break if (group, name) == ("stack.passes", "break") else original(group, name)

    monkeypatch.setattr(plugins, "load", load)
    code, _, err = run(capsys, "opt", text_file, "--pass-pipeline=break")
    assert code == 4
    assert "after pass 'break'" in err
    assert "%bad = exp" in err
    assert "model.py:5" in err


def test_run_compares_with_a_backend(
    text_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_results = tmp_path / "out.npz"
    argv = ("run", text_file, "--backend", "mlir", "--json", "--save", str(saved_results))
    code, out, _ = run(capsys, *argv)
    assert code == 0
    (row,) = json.loads(out)["results"]
    assert row["error"] < 1e-5
    with np.load(saved_results) as held:
        assert sorted(held.files) == ["input_w", "input_x", "result_0"]


def test_large_constants_travel_beside_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    from stack.ir import Builder, param, tensor

    build = Builder()
    x = param("x", tensor("f32", 32))
    func = build.func("f", [x], [build.add(x, build.const(rng.random(32, dtype=np.float32)))])
    (tmp_path / "f.stack").write_text(str(func))
    folder = tmp_path / "run"
    assert main(["dump", str(tmp_path / "f.stack"), "-o", str(folder)]) == 0
    assert (folder / CONSTANTS).is_file()
    code = "import sys, stack.cli; sys.exit(stack.cli.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", f"{folder}:imported"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (folder / CONSTANTS).write_bytes(b"half")
    done = subprocess.run(
        [sys.executable, "-c", code, "run", f"{folder}:imported"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "damaged" in done.stderr


# ---- inventory and help


@pytest.mark.parametrize("kind", ["passes", "stages", "ops", "backends", "env"])
def test_inventory(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, kind)
    assert (code, bool(out)) == (0, True)
    code, out, _ = run(capsys, kind, "--json")
    document = json.loads(out)
    assert document["schema"] == f"stack.{kind}/1"
    assert document[kind]


def test_one_entry_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert "contract two operands" in run(capsys, "ops", "dot")[1]
    assert "max_inputs=" in run(capsys, "passes", "fuse")[1]
    family = run(capsys, "ops", "norm")[1]
    assert "norm.rms_norm" in family and "attention" not in family
    code, _, err = run(capsys, "ops", "dott")
    assert (code, "dot" in err) == (2, True)


def commands() -> list[str]:
    (action,) = [a for a in build_parser()._actions if hasattr(a, "choices") and a.choices]
    return sorted(action.choices or ())


@pytest.mark.parametrize("command", commands())
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert f"stackc {command}" in out
    assert max(map(len, out.splitlines())) <= 100


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["nonsense"], ["dump"]):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 2
    assert UsageError.exit_code == 2


def test_help_is_quick_and_loads_no_framework() -> None:
    code = (
        "import sys, stack.cli\n"
        "stack.cli.build_parser()\n"
        "print([m for m in ('torch', 'jax', 'tvm', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
