"""freeze: one call computes all values of weights alone, and packs panels of products."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

from stack.calls.partial_evaluation import cut
from stack.errors import UsageError
from stack.ir import parse
from stack.ir.traits import is_kernel, runs_once
from stack.rewrite import Pipeline
from stack.target import as_cpu

FREEZE = "freeze{weights=[w, v, b]}"
X = "%x: f32[4, 6], %w: f32[6, 5], %v: f32[6, 5], %b: bf16[5]"
DOT = '{rule="m k, k n -> m n"} : f32[4, 5]'


def once(params: str, given: str, body: str, results: str, types: str) -> str:
    """The line of a call with `once`."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    head = f'%c = call({given}) {{name="weights", once=true}} : {types}'
    return f"{head} {{({params})\n{lines}    return {results}\n  }}\n"


MOVED: Rewrites = {
    "a weight of a product goes through": (
        X,
        f"%z = dot(%x, %w) {DOT}",
        once("%w: f32[6, 5]", "%w", "", "%w", "f32[6, 5]") + f"%z = dot(%x, %c) {DOT}",
    ),
    "a sum of weights": (
        X,
        f"%s = add(%w, %v) : f32[6, 5]\n%z = dot(%x, %s) {DOT}",
        once(
            "%w: f32[6, 5], %v: f32[6, 5]",
            "%w, %v",
            "%s = add(%w, %v) : f32[6, 5]",
            "%s",
            "f32[6, 5]",
        )
        + f"%z = dot(%x, %c) {DOT}",
    ),
    "a result no larger than its weights": (
        X.replace("%b: bf16[5]", "%b: f32[5]"),
        "%s = exp(%b) : f32[5]\n%t = broadcast(%s) {axes=[1]} : f32[6, 5]\n"
        "%u = broadcast(%t) {axes=[1, 2]} : f32[4, 6, 5]\n"
        "%y = broadcast(%x) {axes=[0, 1]} : f32[4, 6, 5]\n%z = add(%y, %u) : f32[4, 6, 5]",
        once("%b: f32[5]", "%b", "%s = exp(%b) : f32[5]", "%s", "f32[5]")
        + "%t = broadcast(%c) {axes=[1]} : f32[6, 5]\n"
        "%u = broadcast(%t) {axes=[1, 2]} : f32[4, 6, 5]\n"
        "%y = broadcast(%x) {axes=[0, 1]} : f32[4, 6, 5]\n%z = add(%y, %u) : f32[4, 6, 5]",
    ),
    "what a product reads from memory, though it is larger": (
        X.replace("%w: f32[6, 5]", "%w: i8[6, 5]"),
        f"%s = cast(%w) : f32[6, 5]\n%z = dot(%x, %s) {DOT}",
        once("%w: i8[6, 5]", "%w", "%s = cast(%w) : f32[6, 5]", "%s", "f32[6, 5]")
        + f"%z = dot(%x, %c) {DOT}",
    ),
}
STAYS: Kept = {
    "no weight": (X.replace("%w", "%y"), f"%z = dot(%x, %y) {DOT}"),
    "no product": (
        X,
        "%t = broadcast(%v) {axes=[0, 1]} : f32[6, 5, 4]\n%z = neg(%t) : f32[6, 5, 4]",
    ),
    "a result larger than its weights": (
        X.replace("%x: f32[4, 6]", "%x: f32[5]"),
        "%s = cast(%b) : f32[5]\n%z = mul(%x, %s) : f32[5]",
    ),
    "rows of a weight": (
        X.replace("%x: f32[4, 6]", "%x: i64[3]"),
        '%z = gather(%w, %x) {rule="v! d, n -> n d"} : f32[3, 5]',
    ),
    "a result": (X, "%z = exp(%w) : f32[6, 5]"),
}


@pytest.mark.parametrize("case", MOVED.values(), ids=MOVED)
def test_moved(case: tuple[str, str, str]) -> None:
    names = ", ".join(n for n in "wvb" if f"%{n}:" in case[0])
    check_rewrite(f"freeze{{weights=[{names}]}}", case)


@pytest.mark.parametrize("case", STAYS.values(), ids=STAYS)
def test_stays(case: tuple[str, str]) -> None:
    names = ", ".join(n for n in "wvb" if f"%{n}:" in case[0])
    check_kept(f"freeze{{weights=[{names}]}}", case)


def test_a_name_that_is_no_parameter_is_refused() -> None:
    program = parse("func @f(%x: f32[2]) -> (f32[2]) at tensor {\n  return %x\n}\n")
    with pytest.raises(UsageError, match="no parameter 'w'"):
        Pipeline("freeze{weights=[w]}").run(program)


# ---- panels: rule, the shape of the rows and of the weight, what the panels are

PANELS = {
    "columns that tiles divide": ("m k, k n -> m n", (42, 24), (24, 128), (2, 24, 64)),
    "columns with a rest": ("m k, n k -> m n", (37, 13), (71, 13), (5, 13, 16)),
    "one panel": ("m k, n k -> m n", (40, 7), (16, 7), (7, 16)),
    "a long axis, in blocks": ("m k, n k -> m n", (42, 8192), (64, 8192), (8, 1024, 64)),
    "batches": ("b m k, b k n -> b m n", (3, 42, 5), (3, 5, 128), (3, 2, 5, 64)),
    "columns of two axes": ("b k, h d k -> b h d", (41, 11), (3, 16, 11), (3, 11, 16)),
    "the weight on the left": ("n k, m k -> m n", (37, 13), (71, 13), (5, 13, 16)),
}


def lowered(rule: str, first: tuple[int, ...], second: tuple[int, ...], weights: str, cpu: str):
    """A product `%z` of rows and a weight, and its function at the loop level."""
    left = rule.split(",")[0].split()
    sizes = dict(zip(left, first, strict=True))
    is_turned = "n" in left and "h" not in rule
    operands = "%w, %x" if is_turned else "%x, %w"
    names = rule.split("->")[0].split(",")
    sizes = dict(zip(names[1 if is_turned else 0].split(), first, strict=True))
    sizes |= dict(zip(names[0 if is_turned else 1].split(), second, strict=True))
    made = [sizes[n] for n in rule.split("->")[1].split()]
    program = parse(
        f"func @f(%x: f32{list(first)}, %w: f32{list(second)}) -> (f32{made}) at tensor {{\n"
        f'  %z = dot({operands}) {{rule="{rule}"}} : f32{made}\n  return %z\n}}\n'
    )
    passes = f"freeze{{weights=[{weights}]}},schedule{{loops=cpu}},tile,distribute"
    return program, Pipeline(passes).run(program, target=as_cpu(None)).func


@pytest.mark.parametrize("case", PANELS.values(), ids=PANELS)
def test_panels_are_packed_by_a_kernel_of_their_own(case, rng: np.random.Generator) -> None:
    rule, first, second, shape = case
    program, made = lowered(rule, first, second, "w", "")
    packing, product = [n for n in made.nodes if is_kernel(n)]
    assert packing.shape == shape
    assert packing in product.args
    assert not any(n.op == "alloc" and n.attrs["name"] == "panel" for n in product.blocks[0].nodes)
    x, w = (rng.normal(size=s).astype(np.float32) for s in (first, second))
    w.flat[0], w.flat[-1] = np.inf, np.nan
    if np.prod(first) * second[0] < 1 << 20:
        want = program.interpret(x.astype(np.float64).astype(np.float32), w)
        np.testing.assert_allclose(made.interpret(x, w), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "weights"),
    [
        ((40, 24), (24, 128), ""),  # no weight
        ((1, 24), (24, 128), "w"),  # one row: the weight is read once, where it is
        ((8, 24), (24, 128), "w"),
    ],
)
def test_others_read_the_weight_as_before(first, second, weights) -> None:
    _, made = lowered("m k, k n -> m n", first, second, weights, "")
    (kernel,) = [n for n in made.nodes if is_kernel(n)]
    _, before = lowered("m k, k n -> m n", first, second, "", "")
    (same,) = [n for n in before.nodes if is_kernel(n)]
    assert kernel.blocks == same.blocks


# ---- two parts

TWO = """func @f(%x: f32[4], %w: f32[4], %v: f32[4], %u: f32[4]) -> (f32[4], f32[4]) at tensor {
  %c = call(%w, %v) {name="weights", once=true} : (f32[4], f32[4]) {(%w: f32[4], %v: f32[4])
    %s = add(%w, %v) : f32[4]
    return %s, %v
  }
  %s = item(%c) {index=0} : f32[4]
  %v_1 = item(%c) {index=1} : f32[4]
  %e = exp(%s) : f32[4]
  %y = mul(%x, %e) : f32[4]
  %t = mul(%u, %v_1) : f32[4]
  return %y, %t
}
"""


def test_cut_gives_steps_on_weights_alone_to_the_first_part() -> None:
    parts = cut(parse(TWO))
    assert parts is not None
    assert (parts.weights, parts.given) == ((1, 2), (0, 2, 3))
    assert str(parts.prepare) == (
        "func @f_frozen(%w: f32[4], %v: f32[4]) -> (f32[4]) at tensor {\n"
        "  %s = add(%w, %v) : f32[4]\n  %e = exp(%s) : f32[4]\n  return %e\n}\n"
    )
    assert str(parts.call) == (
        "func @f(%e: f32[4], %x: f32[4], %v: f32[4], %u: f32[4]) -> (f32[4], f32[4]) at tensor {\n"
        "  %y = mul(%x, %e) : f32[4]\n  %t = mul(%u, %v) : f32[4]\n  return %y, %t\n}\n"
    )


def test_cut_leaves_whole_what_has_nothing_to_prepare() -> None:
    assert cut(parse(TWO.replace("return %s, %v\n", "return %v, %v\n"))) is not None  # exp of v
    plain = "func @f(%x: f32[4]) -> (f32[4]) at tensor {\n  %y = exp(%x) : f32[4]\n  return %y\n}\n"
    assert cut(parse(plain)) is None
    assert any(runs_once(n) for n in parse(TWO).nodes)


# ---- loops: values of weights alone, and panels of products, are computed before the loop

TURNS = """func @f(%x: f32[40, 24], %w: f32[24, 24], %n: i32[]) -> (f32[40, 24]) at tensor {
  %l = while(0:i32, %x, %w, %n) : (i32[], f32[40, 24], f32[24, 24], i32[]) {(%i: i32[], %h: f32[40, 24], %v: f32[24, 24], %m: i32[])
    %t = lt(%i, %m) : bool[]
    return %t
  } {(%i: i32[], %h: f32[40, 24], %v: f32[24, 24], %m: i32[])
    %j = add(%i, 1:i32) : i32[]
    %e = tanh(%v) : f32[24, 24]
    %d = dot(%h, %e) {rule="m k, k n -> m n"} : f32[40, 24]
    return %j, %d, NEXT, %m
  }
  %z = item(%l) {index=1} : f32[40, 24]
  return %z
}
"""  # noqa: E501


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("weights", ["w", ""])
@pytest.mark.parametrize("following", ["%v", "%e"])
def test_a_loop_takes_panels(
    weights: str, following: str, turns: int, rng: np.random.Generator
) -> None:
    program = parse(TURNS.replace("NEXT", following))
    passes = f"freeze{{weights=[{weights}]}},schedule{{loops=cpu}},tile,distribute,hoist"
    made = Pipeline(passes).run(program, target=as_cpu(None)).func
    x, w = (rng.normal(size=s).astype(np.float32) / 4 for s in ((40, 24), (24, 24)))
    n = np.int32(turns)
    want = program.interpret(x, w, n)
    np.testing.assert_allclose(made.interpret(x, w, n), want, rtol=1e-5, atol=1e-5)
    parts = cut(made)
    if not weights or following == "%e":  # nothing is constant, or an iteration changes it
        assert parts is None
        return
    assert parts is not None
    assert parts.weights == (1,)
    assert [k.attrs["name"] for k in parts.prepare.nodes if is_kernel(k)] == ["tanh", "pack"]
    (loop,) = [n for n in parts.call.nodes if n.op == "while"]
    inside = [n.attrs["name"] for n in loop.blocks[1].nodes if is_kernel(n)]
    assert sorted(inside) == ["add", "dot"]
    assert len(parts.prepare.results) == 1  # the loop no longer carries the weight


def test_a_product_of_weights_is_no_part_of_a_stream() -> None:
    """Values of weights alone are computed before streams absorb products."""
    from stack.calls.partial_evaluation import stages_with
    from stack.run.compile import find_backend, stages_of

    forming, lowering = stages_of(find_backend("mlir"))
    names = [name for name, _ in stages_with(forming, lowering, ["w"])[0]]
    assert names.index("laid-out") + 1 == names.index("frozen") < names.index("streamed")
