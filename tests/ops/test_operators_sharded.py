"""Operators on simulated meshes: each is split by its rule, so that a rank can run its kernel."""

from __future__ import annotations

import random

import pytest
from hosted_cases import SMALL, Case
from sharded_cases import MESHES, annotated, differences, partition, run
from test_hosted_values import node_of

import stack
from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.types import tensor
from stack.mesh.ops import is_meeting
from stack.rewrite import Pipeline


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_parts_equal_the_whole(case: Case) -> None:
    rng = random.Random(str(case))
    arrays = case.arrays("float32")
    func = node_of(case, arrays)
    done = 0
    while done < 4:
        placed = annotated(func, rng.choice(MESHES), rng)
        if not placed.meshes:
            continue
        done += 1
        _, local = partition(placed)
        (node,) = [n for n in local.nodes if n.op == "custom"]
        assert not any(map(is_meeting, node.blocks[0].nodes))  # a kernel could not run them
        found = run(placed, arrays)
        dtypes = [r.dtype.name for r in func.results]
        wrong = differences(func.interpret(*arrays), found.results, dtypes)
        assert not wrong, f"{placed}{wrong}"


def attention(heads: int, groups: int) -> stack.Func:
    b = Builder()
    shapes = ((1, heads, 8, 4), (1, groups, 8, 4), (1, groups, 8, 4))
    q, k, v = (param(n, tensor("f32", *s)) for n, s in zip("qkv", shapes))
    out, _ = custom(b, find("attention.with_lse"), [q, k, v], {"causal": True})
    return b.func("f", [q, k, v], [out])


def on_ranks(func: stack.Func, shard: str) -> stack.Func:
    passes = f'annotate{{mesh="cp=2", shard=[{shard}]}},propagate,reshard,spmd'
    return Pipeline(passes).run(func).func


def test_groups_of_heads_are_split_with_their_keys() -> None:
    local = on_ranks(attention(4, 2), '"q: -, cp"')
    (node,) = [n for n in local.nodes if n.op == "custom"]
    assert [str(a.type) for a in node.args] == ["f32[1, 2, 8, 4]"] + ["f32[1, 1, 8, 4]"] * 2
    assert not any(map(is_meeting, local.nodes))


def test_heads_that_share_one_key_are_split_beside_the_whole_key() -> None:
    local = on_ranks(attention(4, 1), '"q: -, cp"')
    (node,) = [n for n in local.nodes if n.op == "custom"]
    shapes = [a.shape for a in node.args]
    assert (shapes[0][1], shapes[1][1]) == (2, 1)


def test_queries_of_a_causal_mask_are_gathered() -> None:
    local = on_ranks(attention(4, 2), '"q: -, -, cp"')
    (node,) = [n for n in local.nodes if n.op == "custom"]
    assert node.args[0].shape[-2] == 8
