"""Every node of torch's own samples of ops ends somewhere, and its fate says where."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_opinfo import NoGraph, full_name, ops, samples, trace

import stack.plugins as plugins
from stack.errors import StackError
from stack.explore.node_outcomes import fates
from stack.explore.retrace import follow
from stack.frontends.torch.importer.graph import import_graph
from stack.run.compile import stages_of
from stack.run.options import target_of

CHUNKS = 24
BACKENDS = (("mlir", "avx512"), ("triton", "sm_90"), ("cuda", "sm_90"))


def lost(chunk: int, limit: int, backend: str, machine: str) -> list[str]:
    loaded = plugins.load("stack.backends", backend)
    forming, lowering = stages_of(loaded)
    target = target_of(loaded, {"target": machine})
    found: list[str] = []
    seen = 0
    for op in [op for i, op in enumerate(ops(torch.float32)) if i % CHUNKS == chunk]:
        for sample in samples(op, limit, torch.float32):
            try:
                graph, _, _ = trace(op, sample)
                func = import_graph(graph, "f").func
            except (NoGraph, StackError):
                continue
            told = fates(follow(func, [*forming, *lowering], target))
            seen += len(told)
            found += [f"{full_name(op)}: {f.origin.mark}" for f in told if f.kind == "lost"]
    assert seen > 0
    return found


def test_first_samples() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert lost(0, 1, *BACKENDS[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "machine"), BACKENDS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_more_samples(chunk: int, backend: str, machine: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert lost(chunk, 2, backend, machine) == []
