"""A small Llama trained on gloo processes: losses of one process under every strategy."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from stack.demos.train_mesh import story


@pytest.mark.parametrize(
    "names",
    [
        ["DP1 x TP2 + SP"],
        ["DP1 x CP2 heads, attention by hand"],
        pytest.param(["PP2 1f1b x DP1"], marks=pytest.mark.slow),
        pytest.param(["FSDP", "JAX DP1 x CP2 ring"], marks=pytest.mark.slow),
    ],
    ids=" and ".join,
)
def test_two_processes(names: list[str]) -> None:
    errors = story(2, names, ranks=2)
    assert sorted(errors) == sorted(names)
    assert max(errors.values()) < 1e-4


@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_in_zigzag_order(ranks: int) -> None:
    """The second loss depends on the gradients of all weights."""
    (error,) = story(2, [f"DP1 x CP{ranks} ring zigzag"], ranks=ranks).values()
    assert error < 1e-4


@pytest.mark.slow
def test_eight_processes() -> None:
    """Ten steps: data, tensor, sequence, context and expert parallel, ZeRO, JAX, pipelines."""
    errors = story(10)
    assert len(errors) == 18
    assert max(errors.values()) < 1e-4
