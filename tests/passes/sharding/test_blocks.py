"""Blocks of a transformer on meshes: which collectives, how many bytes, and the same values."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sharded_blocks import TENSOR_PARALLEL, B, D, F, T, attention, layers, mlp, parallel

from stack.errors import StackError
from stack.ir import Block, Func
from stack.passes.annotate import Annotate
from stack.passes.propagate import Propagate
from stack.passes.reshard import Reshard
from stack.passes.spmd import Spmd
from stack.rewrite import Pipeline, random_inputs
from stack.run.mesh import simulate

X = B // 2 * T * D * 4  # bytes of x on a rank that has a part of the batch
MESH = "dp=2, tp=4"


def run(func: Func, *shard: str, mesh: str = MESH) -> tuple[dict[str, int], dict[str, int]]:
    """Collectives by op and the bytes that a rank sends in them; values are compared."""
    passes = [Annotate(mesh, shard), Propagate(), Reshard()]
    placed = Pipeline(passes).run(func).func
    local = Pipeline([Spmd()]).run(placed).func
    arrays = random_inputs(func)
    found = simulate(placed, local, arrays, filler=np.nan)
    wanted = func.interpret(*arrays)
    assert np.abs(found.results[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    return found.counts, found.sent


@pytest.mark.parametrize("block", [mlp, attention])
def test_megatron_has_one_all_reduce(block: object) -> None:
    """Weights by columns, then by rows (Shoeybi et al. 2019): 2 (n - 1) / n of x."""
    counts, sent = run(block(), "x: dp", *_present(block), "return: dp")
    assert counts == {"all_reduce": 1}
    assert sent == {"all_reduce": 2 * X * 3 // 4}


def _present(block: object) -> tuple[str, ...]:
    names = ("up", "down") if block is mlp else ("w",)
    return tuple(text for text in TENSOR_PARALLEL if text.startswith(names))


def test_sequence_parallel_gathers_once_for_q_k_and_v() -> None:
    """The same bytes in a gather and a reduce-scatter (Korthikanti et al. 2022)."""
    counts, sent = run(attention(), "x: dp, tp", *_present(attention), "return: dp, tp")
    assert counts == {"all_gather": 1, "reduce_scatter": 1}
    assert sent == {"all_gather": X * 3 // 4, "reduce_scatter": X * 3 // 4}


def test_layers_of_sequence_parallel() -> None:
    counts, sent = run(layers(2), "x: dp, tp", *TENSOR_PARALLEL, "return: dp, tp")
    assert counts == {"all_gather": 4, "reduce_scatter": 4}
    assert sum(sent.values()) == 4 * 2 * X * 3 // 4


def test_sums_stay_open_over_a_residual() -> None:
    """Attention and MLP side by side end in one all-reduce of their sum."""
    counts, sent = run(parallel(), "x: dp", *TENSOR_PARALLEL, "return: dp")
    assert counts == {"all_reduce": 1}
    assert sent == {"all_reduce": 2 * X * 3 // 4}


def test_data_parallel_forward_sends_nothing() -> None:
    assert run(layers(1), "x: {dp, tp}", "return: {dp, tp}", mesh="dp=2, tp=2") == ({}, {})


def test_sharded_weights_are_gathered() -> None:
    """FSDP on 8 ranks where activations are larger than weights: each weight once."""
    shard = ("x: {dp, tp}", "up: {dp, tp}", "down: {dp, tp}", "return: {dp, tp}")
    counts, sent = run(mlp(tokens=64), *shard, mesh="dp=2, tp=2")
    assert set(counts) == {"all_gather"}
    assert sum(sent.values()) == 2 * D * F * 4 * 3 // 4


def test_attention_by_context_moves_to_heads() -> None:
    """Ulysses (Jacobs et al. 2023): four all-to-alls of a part of x."""
    shard = ("x: dp, tp", "w*: -", "return: dp, tp")
    counts, sent = run(attention(), *shard)
    assert counts == {"all_to_all": 4}
    assert sent == {"all_to_all": 4 * (X // 4) * 3 // 4}


def test_uneven_sizes() -> None:
    """5 ranks for 128 columns: padded, masked, and still one all-reduce."""
    counts, _ = run(mlp(), "up: -, tp", "down: tp", "x: -, -, -", mesh="tp=5")
    assert Counter(counts) == {"all_reduce": 1}


def test_copies_that_differ_are_found() -> None:
    """A program whose ranks end with other copies of a result is an error, not a result."""
    passes = [Annotate(MESH, ("x: dp", *_present(mlp), "return: dp")), Propagate(), Reshard()]
    placed = Pipeline(passes).run(mlp()).func
    local = Pipeline([Spmd()]).run(placed).func
    (reduced,) = [n for n in local.nodes if n.op == "all_reduce"]
    broken = Func("f", Block(local.params, [reduced.args[0]]))
    with pytest.raises(StackError, match="copies of a result"):
        simulate(placed, broken, random_inputs(mlp()))
