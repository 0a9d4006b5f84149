"""Strategies: the same step, with the collectives and the memory that textbooks give."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from train_step import B, D, F, T, gradients, inputs, step

from stack.errors import UsageError
from stack.ir import Builder, Func, param, parse, tensor
from stack.passes.autoshard import Autoshard
from stack.passes.data_parallel import DataParallel
from stack.passes.sharding.strategies.stages import stages_of
from stack.passes.sharding.training_step import Optimizer, carried
from stack.passes.tensor_parallel import TensorParallel
from stack.passes.unmerge import Unmerge
from stack.passes.zero import Zero
from stack.rewrite import Pass, Pipeline
from stack.run.mesh import simulate
from stack.sim.segments import Meeting, steps_of

W = D * F * 4  # bytes of a weight
PAIR, FLAT = "dp=2, tp=2", "dp=4"
TENSOR = TensorParallel(PAIR, "tp", ("*.up.weight",), ("*.down.weight",))


def run(func: Func, *passes: Pass) -> tuple[Func, dict[str, int]]:
    """The program of a rank, and the bytes that it sends; results are compared."""
    placed = Pipeline([*passes, *Pipeline("propagate,reshard").passes]).run(func).func
    local = Pipeline("spmd").run(placed).func
    arrays = inputs(func)
    found = simulate(placed, local, arrays, filler=np.nan)
    for made, wanted in zip(found.results, func.interpret(*arrays), strict=True):
        assert np.abs(made - wanted).max() <= 1e-5 * max(np.abs(wanted).max(), 1)
    return local, found.sent


def data(mesh: str) -> DataParallel:
    return DataParallel(mesh, batch=("x",))


def test_data_parallel_sums_gradients() -> None:
    local, sent = run(step(), data(FLAT))
    assert sent == {"all_reduce": 2 * 2 * W * 3 // 4 + 2 * 3}  # and the loss
    assert local.params[0].shape == (B // 4, T, D)


@pytest.mark.parametrize(
    ("stage", "sums", "weight"), [(1, "all_reduce", D), (2, "reduce_scatter", D), (3, "", D)]
)
def test_zero_splits_state_then_gradients_then_weights(stage: int, sums: str, weight: int) -> None:
    local, sent = run(step(), data(FLAT), Zero(FLAT, stage=stage))
    shapes = {str(p.attrs["name"]): p.shape for p in local.params}
    assert shapes["layers.0.up.weight.mean"] == (D, F // 4)
    assert shapes["layers.0.up.weight"] == ((D, F // 4) if stage == 3 else (D, F))
    assert sent["all_gather"] == 2 * W * 3 // 4  # of new weights, or of those that are read
    scattered = 2 * 2 * W * 3 // 4 if stage == 1 else 2 * W * 3 // 4
    assert sent[sums or "reduce_scatter"] - 2 * 3 * (stage == 1) == scattered


def test_tensor_parallel_splits_columns_then_rows() -> None:
    local, _ = run(step(), data(PAIR), TENSOR)
    shapes = {str(p.attrs["name"]): p.shape for p in local.params}
    assert shapes["layers.0.up.weight"] == shapes["layers.0.up.weight.square"] == (D, F // 2)
    assert shapes["layers.0.down.weight"] == (F // 2, D)
    over = Counter(n.attrs["over"] for n in local.nodes if n.op == "all_reduce")
    assert over["tp"] == 1  # of activations; the gradient of x is not asked for


def test_sequence_parallel_splits_what_lies_between() -> None:
    both = TensorParallel(PAIR, "tp", ("*.up.weight",), ("*.down.weight",), sequence=1)
    local, _ = run(step(2), data(PAIR), both)
    assert {"reduce_scatter", "all_gather"} <= {n.op for n in local.nodes}


def test_a_product_of_strategies() -> None:
    local, _ = run(step(2), data(PAIR), TENSOR, Zero(PAIR))
    shapes = {str(p.attrs["name"]): p.shape for p in local.params}
    assert shapes["layers.0.up.weight"] in [(D // 2, F // 2), (D, F // 4)]


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="no axis 'tp'"):
        Pipeline([DataParallel(FLAT, "tp", ("x",))]).run(step())
    with pytest.raises(UsageError, match="stages 1, 2 and 3, not 4"):
        Pipeline([Zero(FLAT, stage=4)]).run(step())
    with pytest.raises(UsageError, match=r"no parameter '.*gate"):
        Pipeline([TensorParallel(FLAT, "dp", ("*.gate",))]).run(step())
    with pytest.raises(UsageError, match="is on mesh"):
        Pipeline([data(FLAT), Zero(PAIR)]).run(step())
    with pytest.raises(UsageError, match=r"8 element.* for 16 parts"):
        Pipeline([data("dp=16")]).run(step())
    with pytest.raises(UsageError, match="2 gradients, and"):
        Optimizer(weights=("*.up.weight",)).step(gradients())


def test_what_a_step_carries() -> None:
    func = step()
    names = [str(p.attrs["name"]) for p in func.params]
    back = {names[i]: func.results[r] for r, i in carried(func).items()}
    assert set(back) == set(names) - {"x"}


def test_merged_axes_stay_apart() -> None:
    """Each of batch and sequence may split the product that makes a weight's gradient."""
    b = Builder()
    x, g = (param(n, tensor("f32", 4, 6, 8)) for n in "xg")
    flat = [b.reshape(v, type=tensor("f32", 24, 8)) for v in (x, g)]
    func = b.func("f", [x, g], [b.op("dot", flat, {"rule": "k m, k n -> m n"})])
    made = Pipeline([Unmerge()]).run(func, check=True).func
    assert [n.op for n in made.nodes] == ["dot"]


def test_steps_of_a_rank() -> None:
    """Every value is there when it is read; gathered weights go and come again."""
    local, _ = run(step(4), data(FLAT), Zero(FLAT))
    steps = steps_of(local, bucket=1)
    held = set(local.params)
    gathers: Counter[object] = Counter()
    for each in steps:
        assert held.issuperset(each.work.inputs)
        held = (held | set(each.work.outputs)) - set(each.last)
        if isinstance(each.work, Meeting):
            gathers.update(n for n in each.work.nodes if n.op == "all_gather")
    assert held == {*local.params, *local.results}
    assert max(gathers.values()) == 2


def test_segments_make_anew_what_is_no_more_than_what_it_is_made_of() -> None:
    """The next segment recomputes a cast, a broadcast and a product before a sum."""
    local = parse("""func @f(%x: bf16[4, 8], %r: f32[4]) -> (f32[4, 8]) at tensor {
  %c = cast(%x) : f32[4, 8]
  %b = broadcast(%r) {axes=[0]} : f32[4, 8]
  %d = sub(%c, %b) : f32[4, 8]
  %t = reduce(%d) {axes=[1], kind="sum"} : f32[4]
  %m = all_reduce(%t) {kind="sum", mesh="tp=2", over="tp"} : f32[4]
  %s = broadcast(%m) {axes=[0]} : f32[4, 8]
  %y = mul(%d, %s) : f32[4, 8]
  return %y
}""")
    first, _, last = steps_of(local)
    assert [n.op for n in first.work.outputs] == ["reduce"]
    assert {n.op for n in last.work.inputs} == {"param", "all_reduce"}


@pytest.mark.parametrize("count", [2, 4])
def test_stages_together_are_the_program(count: int) -> None:
    func = gradients(4)
    stages = stages_of(func, count)
    arrays = inputs(func)
    held = dict(zip([str(p.attrs["name"]) for p in func.params], arrays, strict=True))
    forward = [("F", s) for s in range(count)]
    back = [(kind, s) for s in reversed(range(count)) for kind in "BW"]
    for place in (*forward, *back):
        part = stages.parts.get(place)
        if part is not None:
            made = part.func.interpret(*(held[name] for name in part.reads))
            held.update(zip(part.makes, made if isinstance(made, tuple) else (made,), strict=True))
    for (_, name), wanted in zip(stages.results, func.interpret(*arrays), strict=True):
        assert np.array_equal(held[name], wanted)
    sent = stages.sent()
    assert len(sent) == 2 * (count - 1)  # one value to the next stage, one back


@pytest.mark.parametrize(
    ("work", "layers"), [((1, 1, 1, 1), [2, 2]), ((3, 1, 1, 1), [1, 3]), ((1, 1, 1, 3), [3, 1])]
)
def test_the_largest_stage_is_as_small_as_can_be(work: tuple[int, ...], layers: list[int]) -> None:
    def weigh(part: Func) -> float:
        names = {str(p.attrs["name"]) for p in part.params} if part.name[0] == "F" else set[str]()
        return sum(n for i, n in enumerate(work) if f"layers.{i}.up.weight" in names)

    parts = stages_of(gradients(4), 2, weigh=weigh).parts
    read = [{n for n in parts["F", stage].reads if "up" in n} for stage in range(2)]
    assert [len(names) for names in read] == layers


@pytest.mark.parametrize(("cost", "shape"), [(0.0, (8, 16)), (1.0, (8, 8))])
def test_stages_are_cut_where_messages_are_small(cost: float, shape: tuple[int, ...]) -> None:
    """The work would be equal on both sides of %y, but %a has half the bytes."""
    func = parse("""func @f(%x: f32[8, 8], %w: f32[8, 16]) -> (f32[], f32[8, 16]) at tensor {
  %a = tanh(%x) : f32[8, 8]
  %y = dot(%a, %w) {rule="m k, k n -> m n"} : f32[8, 16]
  %e = exp(%y) : f32[8, 16]
  %l = reduce(%e) {axes=[0, 1], kind="sum"} : f32[]
  %g = dot(%a, %e) {rule="m k, m n -> k n"} : f32[8, 16]
  return %l, %g
}""")

    def weigh(part: Func) -> float:
        return sum(n.op in ("dot", "reduce") for n in part.nodes) if part.name[0] == "F" else 0

    parts = stages_of(func, 2, weigh=weigh, send=lambda size: cost * size).parts
    made = dict(zip(parts["F", 0].makes, parts["F", 0].func.results, strict=True))
    assert {made[n].shape for n in parts["F", 1].reads if n in made} == {shape}


@pytest.mark.parametrize(("product", "kept"), [("%c", {"y", "l"}), ("%n", {"y", "p", "l"})])
def test_the_backward_pass_computes_cheap_values_again(product: str, kept: set[str]) -> None:
    """Before: f32 values of the activation are kept. Expected: the matmul in bf16, unless the
    activation reads another value of that size."""
    func = parse(
        f"""func @f(%x: bf16[8, 8], %w: bf16[8, 16]) -> (f32[], bf16[8, 16]) at tensor {{
  %y = dot(%x, %w) {{rule="m k, k n -> m n"}} : bf16[8, 16]
  %c = cast(%y) : f32[8, 16]
  %n = cumulative
  %s = sigmoid(%c) : f32[8, 16]
  %p = mul({product}, %s) : f32[8, 16]
  %l = reduce(%p) {{axes=[0, 1], kind="sum"}} : f32[]
  %q = mul(%p, %s) : f32[8, 16]
  %d = cast(%q) : bf16[8, 16]
  %g = dot(%x, %d) {{rule="m k, m n -> k n"}} : bf16[8, 16]
  return %l, %g
}}""".replace("cumulative", 'dot(%x, %w) {rule="m k, k n -> m n"} : f32[8, 16]')
    )
    names = {node: name for node, name in func.body.names.items()}
    forward = stages_of(func, 1).parts["F", 0]
    numbers = {f"v{i}": names[node] for i, node in enumerate(func.nodes)}
    assert {numbers[name] for name in forward.makes} == kept


def test_too_many_stages() -> None:
    with pytest.raises(UsageError, match="9 stages, but only"):
        stages_of(gradients(2), 9)


def test_autoshard_takes_less_time_where_memory_allows() -> None:
    func = step()
    result = Pipeline([Autoshard(4, most=2, batch=("x",))]).run(func)
    told = [str(note) for note in result.records[0].notes]
    assert told[-1].startswith("taken: ")
    assert result.func.meshes
    small = Pipeline([Autoshard(4, most=2, batch=("x",), memory=20e3)]).run(func)
    assert str(small.records[0].notes[-1]) != told[-1]
    with pytest.raises(UsageError, match="MiB too many: more ranks"):
        Pipeline([Autoshard(4, most=2, batch=("x",), memory=100.0)]).run(func)
