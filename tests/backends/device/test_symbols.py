"""Kernels carry their own names in machine code that was compiled under one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import stack.plugins as plugins
from stack import parse
from stack.backends.device.symbols import ENTRY, named, symbol_of
from stack.run.compile import lower
from stack.run.record import Run

PROGRAM = """
func @main(%x: f32[64, 32], %y: f32[16]) -> (f32[64], f32[16]) at tensor {
  %a = exp(%x) : f32[64, 32] from "model.py:42 layer"
  %b = reduce(%a) {axes=[1], kind="sum"} : f32[64] from "model.py:43"
  %c = neg(%y) : f32[16] from "other-file.py:7 head"
  return %b, %c
}
"""


@pytest.mark.parametrize(
    ("name", "lines", "symbol"),
    [
        ("dot_add", ["model.py:42"], "stack_dot_add__model_py_42"),
        ("max", ["a b.py:1", "c.py:2"], "stack_max__a_b_py_1"),
        ("sum", [], "stack_sum"),
    ],
)
def test_symbols(name: str, lines: list[str], symbol: str) -> None:
    assert symbol_of(name, lines) == symbol


def test_a_long_name_is_cut() -> None:
    assert len(symbol_of("x" * 300, ["model.py:1"])) == len(ENTRY)


def symbols(cubin: bytes, folder: Path) -> str:
    """The output of a tool of CUDA's for a cubin."""
    from stack.backends.device.tools import find_tool

    tool = find_tool("cuobjdump") or shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump was not found")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    options = ["-symbols", "-sass"]
    done = subprocess.run([tool, *options, str(path)], capture_output=True, text=True, check=True)
    return done.stdout


def check(cubin: bytes, symbol: str, folder: Path) -> None:
    """The machine code is the same under another name."""
    assert ENTRY.encode() in cubin
    before, after = symbols(cubin, folder), symbols(named(cubin, symbol), folder)
    assert f"STO_ENTRY      {symbol}\n" in after
    assert before.replace(ENTRY, symbol) == after
    assert "EXIT" in after


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_machine_code(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("triton" if backend == "triton" else "cuda.core")
    func = parse(PROGRAM)
    lowered = lower(func, plugins.load("stack.backends", backend), Run("main", "", backend))
    kernels = [n for n in lowered.nodes if n.op == "kernel"]
    wanted = ["stack_exp_reduce__model_py_42", "stack_neg__other_file_py_7"]
    if backend == "triton":
        from stack.backends.triton.compiler import Compiler

        compiler = Compiler(lowered, "sm_90")
        for node, symbol in zip(kernels, wanted, strict=True):
            source = compiler.source(node)
            assert compiler.symbol(node) == symbol
            check(compiler.binary(source).cubin, symbol, tmp_path)
    else:
        from stack.backends.cuda.compiler import Compiler as CudaCompiler

        cuda = CudaCompiler(lowered, "sm_90", None)
        for node, symbol in zip(kernels, wanted, strict=True):
            binary = cuda.binary(node)
            assert cuda.symbol(node) == symbol
            check(binary.cubin, symbol, tmp_path)
