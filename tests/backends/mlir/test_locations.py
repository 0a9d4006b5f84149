"""Source lines through MLIR's locations and LLVM's debug information to machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from line_programs import ROWS

from stack.backends.mlir import BACKEND, jit
from stack.backends.mlir.compiler import Compiler
from stack.backends.mlir.locations import listing, location
from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.target import Cpu, load

pytest.importorskip("torch_mlir")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    func: Func = parse(ROWS)
    for _, passes in BACKEND.lowering.stages:
        func = Pipeline(passes).run(func).func
    cpu = load("avx512")
    assert isinstance(cpu, Cpu)
    return Compiler(func, cpu, None)


def test_locations_of_lines() -> None:
    assert location(["m.py:3"]) == 'loc("m.py":3:0)'
    assert location(["m.py:3 net.0", "m.py:3"]) == 'loc("m.py":3:0)'
    assert location(["m.py:3", "b.py:4"]) == 'loc(fused["m.py":3:0, "b.py":4:0])'
    assert location(["nowhere"]) == 'loc("nowhere":0:0)'


def test_each_statement_has_its_own_location(compiler: Compiler) -> None:
    (text,) = (kernel.located() for kernel in compiler.by_text.values())
    (add,) = re.findall(r"arith\.addf .* (loc\(.*\))", text)[:1]
    (exp,) = set(re.findall(r"llvm\.call @stack_exp.* (loc\(.*\))", text))  # of several vectors
    (total,) = set(re.findall(r"vector\.reduction .* (loc\(.*\))", text))
    assert (add, exp, total) == (
        'loc("m.py":10:0)',
        'loc("m.py":11:0)',
        'loc("other.py":7:0)',
    )


def test_what_is_compiled_and_what_people_read_have_none(compiler: Compiler) -> None:
    (kernel,) = compiler.by_text.values()
    readable = kernel.readable()
    assert "// m.py:11" in readable
    assert not any("loc(" in text for text in (readable, kernel.text))


def test_lowered_text_and_the_line_table(compiler: Compiler, tmp_path: Path) -> None:
    """Functions that are inlined have the line that calls them, not one of their own text."""
    (text,) = (kernel.located() for kernel in compiler.by_text.values())
    assert 'loc("m.py":11:0)' in jit.lower(text)
    tool = shutil.which("llvm-dwarfdump") or shutil.which("objdump")
    if tool is None:
        pytest.skip("neither llvm-dwarfdump nor objdump is installed")
    path = tmp_path / "kernel.o"
    path.write_bytes(jit.compile_object(text))
    option = "--debug-line" if "dwarfdump" in tool else "--dwarf=decodedline"
    done = subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=True)
    assert "m.py" in done.stdout and "other.py" in done.stdout
    code = jit.disassemble(path.read_bytes())
    if "no disassembly" not in code:
        after = code.split("; m.py:11\n", 1)[1].split("; ", 1)[0]
        assert len(after.splitlines()) > 20  # the polynomial of the exponential


def test_a_listing_has_source_lines_as_comments() -> None:
    text = "k():\nm.py:3 (discriminator 2)\n  0:\tmov\n./-:12\n  3:\tret\n; k():\n; m.py:4"
    found = list(listing(text.splitlines()))
    assert found == ["; m.py:3", "  0:\tmov", "; no source line", "  3:\tret", "; m.py:4"]
