"""Models as other people write them: their results are those of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from strangers import (
    crossformer,
    demucs,
    edm2,
    installed,
    mamba,
    raft,
    ring_attention,
    spline_flow,
    twins,
)
from torch import Tensor, nn

import stack

Factory = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]

FACTORIES: list[Factory] = [
    crossformer.crossformer,
    demucs.demucs,
    edm2.edm2,
    installed.mobilevit,
    installed.transformers_mamba,
    installed.vits_decoder,
    mamba.mamba,
    raft.raft,
    ring_attention.ring_attention,
    spline_flow.spline_flow,
    twins.twins,
]


@pytest.mark.slow
@pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f.__name__)
def test_results(factory: Factory) -> None:
    if factory.__module__.endswith("installed"):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, args = factory()
    with torch.no_grad():
        exact = model.double()(*(x.double() if x.is_floating_point() else x for x in args))
        model.float()
        theirs = model(*args)
        compiled = stack.compile(model, *args)
        found = compiled(*args)
    assert compiled.run.coverage["fallback"] == 0
    limit = 2 * (theirs - exact).abs().max() + 1e-6 * exact.abs().max()
    assert (found - exact).abs().max() <= limit
