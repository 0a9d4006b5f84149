"""Gradients of microbatches on one rank of a pipeline: their mean, made in place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stack.frontends.torch.distributed.pipeline import Gradients  # noqa: E402


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_mean_is_made_in_the_first_microbatch(count: int) -> None:
    torch.manual_seed(0)
    values = [torch.randn(64, dtype=torch.float64) for _ in range(count)]
    wanted = torch.stack(values).mean(0)
    first = values[0]
    gradients = Gradients(count, None)
    for value in values:
        gradients.add("w", value)
    found = gradients.means()
    assert list(found) == ["w"] and found["w"] is first
    torch.testing.assert_close(found["w"], wanted, rtol=1e-14, atol=1e-14)
