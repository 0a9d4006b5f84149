"""The ranks that compute a node: bytes against work, by the rates of a machine."""

from __future__ import annotations

import pytest

from stack.errors import UsageError
from stack.ir import Builder, param, parse, tensor
from stack.mesh.meshes import parse_mesh
from stack.mesh.sharding import sharded
from stack.passes.sharding.node_choices import best_choice
from stack.rewrite import Pipeline
from stack.sim import machine, names

M = parse_mesh("tp=4")
TP = M.axes_of("tp")


@pytest.mark.parametrize(("balance", "is_split"), [(10.0, True), (1000.0, False)])
def test_work_is_split_where_sending_is_cheap(balance: float, is_split: bool) -> None:
    """The result is twice as large as the operand that would be gathered instead."""
    x, w = param("x", tensor("f32", 64, 64)), param("w", tensor("f32", 64, 128))
    node = Builder().dot(x, w, rule="m k, k n -> m n")
    rows, whole = sharded(M, (TP, ())), sharded(M, ((), ()))
    choice = best_choice(M, balance, node, [[rows], [whole]], [whole])
    assert bool(choice.split) is is_split


def test_balance_is_that_of_a_machine() -> None:
    assert machine("h100").balance == pytest.approx(0.75 * 0.87 * 9.894e14 / 4.5e11)
    assert all(100 < machine(name).balance < 10_000 for name in names())


def test_a_machine_that_is_not_known() -> None:
    func = parse("func @f(%x: f32[8]) -> (f32[8]) at tensor {\n  return %x\n}")
    with pytest.raises(UsageError, match=r"no machine 'h10'.*h100"):
        Pipeline('annotate{mesh="tp=4", shard=["x: tp"]},propagate{machine=h10}').run(func)
