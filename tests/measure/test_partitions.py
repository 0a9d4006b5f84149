"""`compare --sharding` and `bench sharding`: bytes of our partitions, and how peers are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stack
from stack.cli import main
from stack.errors import UsageError
from stack.ir import Func
from stack.measure.partitions import compare_partitions, ours, peak_bytes, peer_row
from stack.measure.sharding_suite import CASES, KIB, ShardingCase, annotate, sharding_bench
from stack.run.partitioner import Collective, Partition, partition_of

TEXT = """func @f(%x: f32[8, 16], %up: f32[16, 32], %down: f32[32, 16]) -> (f32[8, 16]) at tensor {
  %h = dot(%x, %up) {rule="m k, k n -> m n"} : f32[8, 32]
  %y = dot(%h, %down) {rule="m k, k n -> m n"} : f32[8, 16]
  return %y
}
"""
PLACES = ("x: dp", "up: -, tp", "down: tp", "return: dp")


def annotated() -> Func:
    return annotate(stack.parse(TEXT), "dp=2, tp=4", PLACES)


def cases(is_long: bool) -> list[ShardingCase]:
    return [case for case in CASES if ("layers" in case.factory) is is_long]


def check(case: ShardingCase) -> None:
    (found,) = sharding_bench([case], [], print).found
    assert not found.problems
    assert found.sent <= case.reach * KIB


@pytest.mark.every(3)
@pytest.mark.parametrize("case", cases(False), ids=lambda case: case.name)
def test_sends_what_is_to_be_reached(case: ShardingCase) -> None:
    """Not more than XLA, and all ranks together have the value of the whole program."""
    pytest.importorskip("jax")
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(True), ids=lambda case: case.name)
def test_layers_send_what_is_to_be_reached(case: ShardingCase) -> None:
    pytest.importorskip("jax")
    check(case)


@pytest.mark.parametrize("mesh", ["dp=2, tp=4", "tp=1"])
def test_a_program_without_placements_is_refused(mesh: str) -> None:
    with pytest.raises(
        UsageError, match=r"@f has no sharding annotations.*--shard.*\(x, up, down\)"
    ):
        compare_partitions(annotate(stack.parse(TEXT), mesh, ()), ["xla"])


def test_the_command_says_how_to_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    assert main(["compare", str(path), "--sharding", "--mesh", "dp=2,tp=4"]) == 2
    assert "--shard" in capsys.readouterr().err


def test_a_value_that_differs_is_a_problem() -> None:
    pytest.importorskip("jax")
    (found,) = sharding_bench([CASES[0]], [], print).found
    worse = type(found)(found.case, found.rows, np.inf)
    assert "differs from the whole program" in worse.problems[0]
    more = Partition((Collective("all_gather", 2, 10**9),), 0.0)
    sends = type(found)(found.case, (type(found.rows[0])("stack", more),), 0.0)
    assert sends.problems == ["MLP, tensor parallel: sends more than XLA"]


def test_our_partition_in_numbers() -> None:
    made, _, local = ours(annotated())
    assert made.counts() == {"all_reduce": 1}
    assert made.sent == 2 * 3 * (4 * 16 * 4 // 4) and made.steps == 6
    x, h, up, down = 4 * 16, 4 * 8, 16 * 8, 8 * 16
    assert made.peak == peak_bytes(local) == 4 * (x + up + down + max(h + x, x + x))
    assert partition_of(json.loads(json.dumps(made.as_dict()))) == made


@pytest.mark.parametrize(
    ("name", "package"), [("xla", "jax"), ("shardy", "jax"), ("dtensor", "torch")]
)
def test_peers_find_the_same_all_reduce(name: str, package: str) -> None:
    pytest.importorskip(package)
    row = peer_row(annotated(), name)
    assert row.made is not None, row.note
    assert row.made.counts() == {"all_reduce": 1}
    assert row.made.sent == 384


def test_a_peer_says_what_it_cannot_do() -> None:
    """DTensor has no halves of axes."""
    pytest.importorskip("torch")
    func = annotate(stack.parse(TEXT), "dp=2, tp=4", ("x: {tp:(1)2}",))
    row = peer_row(func, "dtensor")
    assert row.made is None and "splits whole axes" in row.note


def test_hlo_is_read() -> None:
    pytest.importorskip("jax")
    from stack.backends.partition_jax import hlo_collectives

    text = """
  %a = f32[4,64]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %b = bf16[8,64]{1,0} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}
  %c = f32[4]{0} reduce-scatter(%x), replica_groups=mesh['a'=4,'b'=2], device_ids=([8]) {'a','b'}
  %d = (f32[4]{0}, f32[4]{0}) all-to-all(%x, %y), replica_groups={{0,1}}
  %e = pred[16]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}
  %f = f32[4] add(%x, %all-reduce)
"""
    assert hlo_collectives(text) == (
        Collective("all_reduce", 2, 1024),
        Collective("all_gather", 4, 256),
        Collective("reduce_scatter", 8, 128),
        Collective("all_to_all", 2, 32),
        Collective("permute", 2, 16),
    )


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.stack"
    file.write_text(TEXT)
    shard = [word for text in PLACES for word in ("--shard", text)]
    command = ["compare", str(file), "--sharding", "--mesh", "dp=2,tp=4", *shard]
    assert main([*command, "--with", "nobody"]) == 2
    assert "no partitioner 'nobody'" in capsys.readouterr().err
    assert main(["compare", str(file), "--sharding"]) == 2
    assert main(["compare", str(file), "--mesh", "dp=2"]) == 2
    assert main([*command, "--with", "", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["system"] == "stack" and row["bytes_sent"] == 384
