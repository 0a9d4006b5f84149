"""Architectures of installed libraries: captured, native, right, and trained as eager trains them.

`python tests/strangers/report.py` prints the figures of all.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from strangers.catalogue import catalogue  # noqa: E402
from strangers.check import check  # noqa: E402

# One of each kind: llama and gpt2 are in tests/frontends/torch/test_models.py too.
FAST = {
    "transformers/bert",
    "transformers/patchtst",
    "timm/mixer",
    "flax/resnet",
    "nnx/vit",
    "equinox/cnn",
}


def names() -> list[Any]:
    return [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in catalogue()]


@pytest.mark.parametrize("name", names())
def test_architecture(name: str) -> None:
    row = check(catalogue()[name], name)
    if row.skipped:
        pytest.skip(row.skipped)
    assert not row.failed
    assert row.captured
    assert row.right, (row.error, row.limit)
    assert row.trained, (row.train_error, row.worst)
