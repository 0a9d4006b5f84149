"""Memory that ranks hold: no operand of a complete collective, no result of an earlier part."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stack.frontends.torch.distributed.pipeline import Gradients, PipelineRank  # noqa: E402
from stack.frontends.torch.distributed.rank_program import RankProgram  # noqa: E402
from stack.frontends.torch.replay.space import TorchSpace  # noqa: E402
from stack.ir import Builder, param, parse, tensor  # noqa: E402
from stack.ir.node import Node  # noqa: E402
from stack.mesh.meshes import parse_mesh  # noqa: E402
from stack.sim.pipeline import ChunkProgram, Work  # noqa: E402

Tensor = Any

SCATTER = """func @f(%x: f32[4, 4], %v: f32[4, 4]) -> (f32[4, 4], f32[4, 4]) at tensor {
  %y = dot(%x, %x) {rule="m k, k n -> m n"} : f32[4, 4]
  %s = reduce_scatter(%y) {axis=0, kind="sum", mesh="dp=1", over="dp"} : f32[4, 4]
  %g = all_gather(%v) {axis=0, mesh="dp=1", over="dp"} : f32[4, 4]
  %a = dot(%g, %x) {rule="m k, k n -> m n"} : f32[4, 4]
  return %s, %a
}"""


class Alone(TorchSpace):
    """A group of one rank, whose collectives keep their operand until they are waited for."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.rank = 0
        self.operands: list[weakref.ref[Tensor]] = []
        self.waited: list[str] = []

    def start(self, node: Node, x: Tensor, is_free: bool = False) -> Callable[[], Tensor]:
        self.operands.append(weakref.ref(x))

        def finish() -> Tensor:
            self.waited.append(node.op)
            return x.clone()

        return finish


def test_a_result_frees_the_operands_of_earlier_collectives() -> None:
    """The sum over ranks is a result of the program; its operand is free before the end."""
    space = Alone()
    program = RankProgram(parse_mesh("dp=1"), parse(SCATTER), space, bucket=1)
    alive: list[bool] = []
    for segment, compute in program.computes.items():

        def told(args: Sequence[Tensor], compute: Any = compute) -> Sequence[Tensor]:
            alive[:] = [operand() is not None for operand in space.operands]
            return compute(args)

        program.computes[segment] = told
    x, v = torch.randn(4, 4), torch.randn(4, 4)
    total, made = program(x, v)
    torch.testing.assert_close(total, x @ x)
    torch.testing.assert_close(made, v @ x)
    assert sorted(space.waited) == ["all_gather", "reduce_scatter"]
    assert alive.count(True) == 1  # %v is an argument


def test_a_part_leaves_no_results() -> None:
    """The gradient of the second microbatch is added to that of the first, and freed."""
    b = Builder()
    x = param("x", tensor("f32", 8))
    part = ChunkProgram(b.func("W0", [x], [b.neg(x)]), ("x",), ("g",))
    runner = PipelineRank.__new__(PipelineRank)
    made: list[weakref.ref[Tensor]] = []

    def compute(args: Sequence[Tensor]) -> list[Tensor]:
        found = [-a for a in args]
        made.extend(map(weakref.ref, found))
        return found

    runner.parts, runner.computes = {("W", 0): part}, {("W", 0): compute}
    runner.results, runner.backend, runner.peers = {"g": "w"}, "mlir", [0]
    runner.readers, runner.makers, runner.rank = {}, {"g": ("W", 0)}, 0
    batches = [{"x": torch.ones(8)}, {"x": torch.full((8,), 3.0)}]
    gradients = Gradients(2, None)
    for number in range(2):
        assert runner._do(Work("W", 0, number), {}, batches, {}, gradients) == []
    assert [value() is None for value in made] == [False, True]
    torch.testing.assert_close(gradients.means()["w"], torch.full((8,), -2.0))
