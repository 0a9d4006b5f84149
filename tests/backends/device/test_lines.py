"""Source lines in the PTX and the machine code of kernels for GPUs that are not here."""

from __future__ import annotations

import re
from functools import cache

import pytest
from line_programs import ROWS

import stack.plugins as plugins
from stack.backends.device.tools import find_tool
from stack.backends.runtime.names import in_full, origin, place_of
from stack.backends.triton.compiler import line_of, with_functions, with_lines
from stack.explore.assembly import instructions
from stack.ir import parse
from stack.rewrite import Pipeline


@cache
def artifacts(backend: str) -> dict[str, str]:
    pytest.importorskip("triton" if backend == "triton" else "cuda.core")
    made = plugins.load("stack.backends", backend)
    func = Pipeline(",".join(spec for _, spec in made.lowering.stages)).run(parse(ROWS)).func
    _, found = made.inspect(func, {"target": "sm_90", "cache": False})
    return {name: text if isinstance(text, str) else text() for name, text in found.items()}


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_machine_code_has_source_lines(backend: str) -> None:
    if find_tool("nvdisasm") is None:
        pytest.skip("nvdisasm was not found")
    found = instructions(artifacts(backend)["sass"])
    assert {"m.py:10", "m.py:11", "other.py:7"} <= found.keys()
    assert any("MUFU.EX2" in line for line in found["m.py:11"])
    assert any("SHFL" in line for held in found.values() for line in held)
    assert not any("MUFU.EX2" in line for line in found["m.py:10"])


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_ptx_has_source_lines(backend: str) -> None:
    text = artifacts(backend)["ptx"]
    after = re.findall(r"\.loc.*// m\.py:11.*\n((?:(?!.*\.loc).*\n)*)", text)
    assert any("ex2" in part for part in after)


def test_stages_of_triton_name_files_of_the_user() -> None:
    held = artifacts("triton")
    assert 'loc("m.py":11:0)' in held["ttir"] and 'loc("m.py":11:0)' in held["ttgir"]
    assert re.search(r"!DILocation\(.*\) ; m\.py:11$", held["llir"], re.MULTILINE)
    assert not any(re.search(r"<stack triton \w+>\"?:\d", held[s]) for s in ("ttir", "ptx"))


def test_lines_of_a_text() -> None:
    assert place_of("block.py:42 Attn.wq") == ("block.py", 42)
    assert place_of("nowhere") == ("nowhere", 0)
    assert in_full(["", "m.py:3"], ["m.py:3"]) == ("m.py:3", "m.py:3")
    assert in_full(["", "m.py:3"], ["m.py:3", "m.py:4"]) == ("", "m.py:3")
    assert [origin(["", "m.py:3 net"], n) for n in (0, 1, 2, 3)] == ["", "", "m.py:3", ""]


def test_lines_of_a_module() -> None:
    """A function that one line calls is of that line; of several lines, of none."""
    module = "def once(x):\n    return x\n\n\ndef twice(x):\n    return x\n\n\ndef k(p):\n"
    module += "    a = once(p)\n    b = twice(a)\n    c = twice(b)\n"
    lines = [""] * 9 + ["m.py:1", "m.py:2", "m.py:3"]
    found = with_functions(module, lines)
    assert found == ("m.py:1", "m.py:1", *lines[2:])
    assert line_of(lines, "<stack triton 0a1b>", 10) == "m.py:1"
    assert line_of(lines, "/usr/lib/triton/language/standard.py", 10) == ""
    assert with_lines('loc("<stack triton 0a>":11:4)', lines) == 'loc("m.py":2:0)'
    assert with_lines("// <stack triton 0a>:1:4", lines) == "// -:1:0"
