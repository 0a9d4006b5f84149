"""Programs of many layers are decided on a few of them; each value has its place and reason."""

from __future__ import annotations

from sharded_blocks import TENSOR_PARALLEL, layers

from stack.ir import Func, parse
from stack.passes.annotate import Annotate
from stack.passes.propagate import Propagate
from stack.passes.sharding.equivalence import folded
from stack.rewrite import Pipeline

MESH = "dp=2, tp=4"
PLACES = ("x: dp, tp", *TENSOR_PARALLEL, "return: dp, tp")


def annotated(count: int) -> Func:
    return Pipeline([Annotate(MESH, PLACES)]).run(layers(count)).func


def test_many_layers_are_as_few_nodes_as_few_layers() -> None:
    few, many = folded(annotated(12)), folded(annotated(24))
    assert len(few.func.nodes) == len(many.func.nodes) < len(annotated(12).nodes) / 2
    assert sum(many.counts.values()) == len(many.members)
    assert folded(annotated(2)).func is annotated(2)


def test_all_layers_lie_alike() -> None:
    found = Pipeline([Propagate()]).run(annotated(12))
    types = {str(p.attrs["name"]): str(p.type) for p in found.func.params}
    assert {types[f"wq{i}"] for i in range(12)} == {"f32[32, 32{tp}] @m"}
    inner = [str(n.type) for n in found.func.nodes if n.op == "tanh"]
    assert set(inner) == {"f32[4{dp}, 4, 128{tp}] @m"} and len(inner) == 12


def test_what_was_left_out_names_what_it_lies_like() -> None:
    notes = [str(note) for note in Pipeline([Propagate()]).run(annotated(12)).records[0].notes]
    like = [note for note in notes if note.startswith("%tanh_6 is split like %")]
    assert len(like) == 1
    assert any(note.startswith(f"{like[0].split()[-1]}: dim 2 on tp, from") for note in notes)


def test_operands_of_one_node_are_told_apart() -> None:
    """q and k have the same type and the same producer; their reader uses them differently."""
    b = parse(
        """func @f<@m(tp=2)>(%x: f32[4, 4] @m, %q: f32[4, 4] @m, %k: f32[4, 4] @m) -> (f32[4, 4]) at tensor {
  %a = dot(%x, %q) {rule="m k, k n -> m n"} : f32[4, 4]
  %b = dot(%x, %k) {rule="m k, k n -> m n"} : f32[4, 4]
  %c = dot(%a, %b) {rule="m k, n k -> m n"} : f32[4, 4]
  return %c
}
"""  # noqa: E501
    )
    assert folded(b).func is b
