"""Indices have 32 bits; stored values and the terms of sums have their own type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import COMPILER, emulate
from gpu_cases import gpu_kernel, several
from kernel_cases import group_of, program

import stack
from stack.backends.cuda import BACKEND, nvrtc
from stack.ir import Builder, Node, tensor
from stack.rewrite import Pipeline

pytestmark = pytest.mark.skipif(nvrtc.missing_compiler() is not None, reason="needs NVRTC")
LONG = 66_000  # each thread stores several elements


def later(b: Builder, x: Node) -> Node:
    return b.add(b.iota(axis=0, type=tensor("i64", LONG)), 7)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_vectors_of_indices_are_stored(tmp_path: Path) -> None:
    group = group_of(later, [("i64", 1)])
    (got,) = emulate(gpu_kernel(group), [np.zeros(1, np.int64)], tmp_path)
    (want,) = several(program(group).interpret(np.zeros(1, np.int64)))
    np.testing.assert_array_equal(got, want)


def test_sort_of_many_elements_compiles() -> None:
    torch = pytest.importorskip("torch")
    func = stack.trace(torch.sort, torch.zeros(LONG))
    lowered = Pipeline(",".join(spec for _, spec in BACKEND.lowering.stages)).run(func).func
    assert BACKEND.inspect is not None
    kernels, artifacts = BACKEND.inspect(lowered, {"target": "sm_90", "cache": False})
    assert [k.kind for k in kernels] == ["generated", "library"]
    text = artifacts["cuda"]
    assert "store_run" in (text if isinstance(text, str) else text())


def test_masked_vectors_of_integers_compile() -> None:
    torch = pytest.importorskip("torch")
    func = stack.trace(
        lambda x: torch.nn.functional.pad(x, (1024, 1024)), torch.zeros(8192, dtype=torch.int64)
    )
    lowered = Pipeline(",".join(spec for _, spec in BACKEND.lowering.stages)).run(func).func
    assert BACKEND.inspect is not None
    _, artifacts = BACKEND.inspect(lowered, {"target": "sm_90", "cache": False})
    text = artifacts["cuda"]
    source = text if isinstance(text, str) else text()
    assert "load_run<2>" in source
    assert nvrtc.compile_cubin(source, "kernel", "sm_90").cubin
