"""Text of captured graphs, and of the project's programs, is lossless at every level."""

from __future__ import annotations

from functools import cache

import pytest
from levels import OPTIONS, reads_back

import stack
from stack.demos.suite import FAMILIES, program
from stack.ir import Func
from stack.testing.passes import captured_graphs

FAST = ("sgd_step", "gated_scan")  # gradients of a transformer block, and scans
PROGRAMS = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for names in FAMILIES.values()
    for name in names
]


@cache
def graphs() -> dict[str, Func]:
    return captured_graphs()


@pytest.mark.parametrize(
    ("backend", "name"), [("mlir", "gpt2_block_jax"), ("triton", "rnn_jax"), ("cuda", "rnn_jax")]
)
def test_a_captured_graph(backend: str, name: str) -> None:
    assert reads_back(graphs()[name], backend) > 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", OPTIONS)
@pytest.mark.parametrize("name", graphs())
def test_captured_graphs(name: str, backend: str) -> None:
    assert reads_back(graphs()[name], backend) > 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_demos(name: str) -> None:
    made = program(name)
    pytest.importorskip(made.framework)
    func = stack.trace(made.fn, *made.args)
    for backend in OPTIONS:
        assert reads_back(func, backend) > 3
