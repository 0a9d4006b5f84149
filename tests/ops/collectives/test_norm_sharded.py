"""The norm behind a row-parallel product: its partition by its axis rule on a mesh."""

from __future__ import annotations

import numpy as np
import pytest
from sharded_cases import partition

from stack.hosted.nodes import custom
from stack.ir import Builder, Func, param, tensor
from stack.ops.norm import add_rms_norm
from stack.passes.annotate import Annotate
from stack.rewrite import Pipeline, random_inputs
from stack.run.mesh import simulate

TOKENS, WIDTH, HIDDEN = 8, 12, 16


def block() -> Func:
    """A product, and the norm of it and a residual."""
    shapes = {"h": (TOKENS, HIDDEN), "w": (HIDDEN, WIDTH), "residual": (TOKENS, WIDTH)}
    h, w, residual = (param(name, tensor("f32", *shape)) for name, shape in shapes.items())
    gain = param("gain", tensor("f32", WIDTH))
    b = Builder()
    x = b.op("dot", [h, w], {"rule": "t k, k n -> t n"})
    return b.func("block", [h, w, residual, gain], custom(b, add_rms_norm, [x, residual, gain], {}))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("shard", "collectives"),
    [
        (("h: -, tp", "w: tp, -"), ["all_reduce"]),
        (("h: -, tp", "w: tp, -", "residual: tp, -"), ["reduce_scatter"]),
        (("h: tp, -",), []),
    ],
    ids=["rows of w", "and of the residual", "tokens"],
)
def test_a_sum_is_complete_before_it_is_normed(
    ranks: int, shard: tuple[str, ...], collectives: list[str]
) -> None:
    func = Pipeline([Annotate(f"tp={ranks}", shard)]).run(block()).func
    planned, local = partition(func)
    meet = [n.op for n in local.nodes if n.op in ("all_reduce", "reduce_scatter", "all_gather")]
    assert meet[: len(collectives)] == collectives
    assert "all_reduce" not in meet or collectives == ["all_reduce"]
    (norm,) = (n for n in local.nodes if n.op == "custom")
    rows = TOKENS if collectives == ["all_reduce"] else TOKENS // ranks
    assert norm.args[0].shape == (rows, WIDTH)
    arrays = random_inputs(func)
    for found, wanted in zip(
        simulate(planned, local, arrays, filler=77).results, func.interpret(*arrays), strict=True
    ):
        assert np.abs(found - wanted).max() < 1e-5
