"""States that are the same along an axis are kept once, not for each of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_blocks import check, loops

torch = pytest.importorskip("torch")
Tensor = Any


def test_sums_over_weights_have_no_rows(rng: np.random.Generator) -> None:
    """The matrix times the gain and times the bias of a norm: of the state's rows, one is held."""

    def program(x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (48,), gain, bias) @ weight

    sizes = ((2, 70, 48), (48,), (48,), (48, 24))
    func = check(program, [torch.from_numpy(rng.normal(size=s).astype("f")) for s in sizes])
    (loop,) = loops(func)
    carried = [a.shape for a in loop.blocks[0].params[1:]]
    assert sum(len(shape) == 2 for shape in carried) == 1
    assert sum(shape == (32,) for shape in carried) == 2
