"""Memory of a training step: the backward pass releases values as soon as it has used them.

NumPy reports all arrays that programs make to tracemalloc, so bytes are counted, not sampled.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch
from torch._functorch import config

from stack.calls.graph import CompiledGraph
from stack.frontends.torch.compile.dynamo_backend import GRAPHS

Tensor = torch.Tensor
WIDTH, ROWS, LAYERS = 64, 8192, 4
TABLE = 4 * WIDTH * ROWS  # bytes of what a layer keeps
SMALL = TABLE // 4  # more than all gradients of weights, and what Python makes


def by_columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w)


def by_rows(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(torch.nn.functional.linear(x, w))


def turned(x: Tensor, w: Tensor) -> Tensor:
    """Its gradients lie in memory in another order of axes than programs write."""
    return torch.tanh((w.T @ x.T).T)


def network(layer: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def loss(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = layer(x, w)
        return x.square().sum()

    return loss


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, WIDTH), *[(WIDTH, WIDTH)] * LAYERS]
    return [(torch.randn(s, generator=generator) / 8).requires_grad_() for s in shapes]


@pytest.mark.every(2)
@pytest.mark.parametrize("layer", [by_columns, by_rows, turned])
def test_gradients_take_the_place_of_what_was_kept(
    layer: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    # calls by address make memory of torch's, which nothing traces
    monkeypatch.setattr(CompiledGraph, "by_address", lambda *_: (None, None))
    compiled = torch.compile(network(layer), backend="stack")
    args = inputs()
    torch.autograd.grad(compiled(*args), args)  # makes the programs, and their arenas
    tracemalloc.start()
    try:
        loss = compiled(*args)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        found = torch.autograd.grad(loss, args)
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert LAYERS * TABLE <= kept < LAYERS * TABLE + SMALL
    # the gradient of x is as large as what one layer keeps
    assert most < kept + SMALL
    assert TABLE <= left < TABLE + SMALL
    exact = [a.detach().double().requires_grad_() for a in args]
    wanted = torch.autograd.grad(network(layer)(*exact), exact)
    torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-3, atol=1e-3)


def classifier(table: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
    """A language model without layers: one table is the embedding and the classifier."""
    hidden = torch.tanh(torch.nn.functional.embedding(tokens, table))
    return torch.nn.functional.cross_entropy(hidden @ table.T, targets)


def test_arenas_hold_no_table_of_logarithms() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(4096, WIDTH, generator=generator).requires_grad_()
    tokens, targets = torch.randint(0, 4096, (2, 128), generator=generator)
    logits = 4 * 128 * 4096
    before = len(GRAPHS)
    loss = torch.compile(classifier, backend="stack")(table, tokens, targets)
    (found,) = torch.autograd.grad(loss, [table])
    forward, backward = (arena_of(graph) for graph in list(GRAPHS)[before:])
    assert forward < logits / 8
    assert backward <= logits
    exact = table.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(classifier(exact, tokens, targets), [exact])
    torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-5, atol=1e-6)


def arena_of(graph: CompiledGraph) -> int:
    """Bytes of the intermediates of a program, as they are planned."""
    (executable,) = graph.executables.values()
    assert executable.peak_bytes is not None
    return executable.peak_bytes - sum(int(str(r.tensor.bytes)) for r in graph.func.results)


def test_a_graph_that_is_retained_is_walked_twice() -> None:
    args = inputs()
    # as torch asks for: by default it refuses to retain what a compiled backward pass may reuse
    with config.patch(donated_buffer=False):
        loss = torch.compile(network(by_rows), backend="stack")(*args)
        first = torch.autograd.grad(loss, args, retain_graph=True)
        again = torch.autograd.grad(loss, args)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
