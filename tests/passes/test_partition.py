"""partition: where a training step is cut, and why."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from stack.errors import StackError
from stack.ir import Func, Node, parse
from stack.passes.training.min_cut import INFINITE, SINK, SOURCE, Network
from stack.rewrite import Pipeline

STEP = """func @joint(%x: f32[32, 64], %w: f32[64, 64], %tangents_1: f32[32, 64]) \
-> (f32[32, 64], f32[64, 64]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[32, 64] from "net.py:3"
  %t = tanh(%y) : f32[32, 64] from "net.py:4"
  %s = mul(%t, %t) : f32[32, 64]
  %r = sub(1.0:f32, %s) : f32[32, 64]
  %g = mul(%tangents_1, %r) : f32[32, 64]
  %dw = dot(%x, %g) {rule="m k, m n -> k n"} : f32[64, 64]
  return %t, %dw
}
"""
CUT = """func @joint(%x: f32[32, 64], %w: f32[64, 64], %tangents_1: f32[32, 64]) \
-> (f32[32, 64], f32[64, 64]) at tensor {
  %forward = call(%x, %w) {name="forward"} : f32[32, 64] {(%x: f32[32, 64], %w: f32[64, 64])
    %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[32, 64] from "net.py:3"
    %t = tanh(%y) : f32[32, 64] from "net.py:4"
    return %t
  }
  %backward = call(%x, %forward, %tangents_1) {name="backward"} : f32[64, 64] \
{(%x: f32[32, 64], %t: f32[32, 64], %tangents_1: f32[32, 64])
    %s = mul(%t, %t) : f32[32, 64]
    %r = sub(1.0:f32, %s) : f32[32, 64]
    %g = mul(%tangents_1, %r) : f32[32, 64]
    %dw = dot(%x, %g) {rule="m k, m n -> k n"} : f32[64, 64]
    return %dw
  }
  return %forward, %backward
}
"""


def parts(func: Func) -> dict[str, Node]:
    """The calls that a function was cut into, by name."""
    return {str(n.attrs["name"]): n for n in func.nodes if n.op == "call"}


def cut(text: str, options: str = "tangents=1") -> tuple[list[str], list[str]]:
    """The operands of the backward pass, by name, and the pass's notes; checks values."""
    result = Pipeline(f"partition{{{options}}}").run(parse(text), check=True)
    block = parts(result.func)["backward"].blocks[0]
    return [str(p.attrs["name"]) for p in block.params], list(result.records[0].notes)


def test_before_and_after() -> None:
    result = Pipeline("partition{tangents=1}").run(parse(STEP), check=True)
    assert result.func is parse(CUT), str(result.func)


def test_the_notes_say_what_was_done_at_what_price() -> None:
    _, notes = cut(STEP)
    assert notes == [
        "kept for the backward pass: 1 input, 1 value more (8.19 kB of traffic);"
        " recomputed: 2 values (258 B)",
        "%t is kept: 8.19 kB to read, recomputed 17.9 kB",
        "%s is recomputed: 129 B, kept 16.4 kB",
        "%r is recomputed: 129 B, kept 16.4 kB",
    ]


def test_fuel_and_a_function_without_gradients() -> None:
    func = parse(STEP)
    assert Pipeline("partition{tangents=1}").run(func, fuel=0).func is func
    assert Pipeline("partition{results=2}").run(func).func is func


def test_the_program_may_want_values_recomputed() -> None:
    """A checkpoint around the layer; the product needs its operands then."""
    given, notes = cut(STEP, "tangents=1, recompute=[y, t]")
    assert given == ["x", "w", "tangents_1"]
    assert "%y is recomputed: 0 B, as the program says" in notes


def test_inputs_alone_are_kept() -> None:
    assert cut(STEP, "tangents=1, inputs=true")[0] == ["x", "w", "tangents_1"]


DROPOUT = """func @joint(%x: f32[8], %tangents_1: f32[8]) -> (f32[8], f32[8]) at tensor {
  %m = opaque(%x) {call="[]", effect=0, target="torch:aten.bernoulli.p"} : f32[8]
  %k = mul(%m, 2.0:f32) : f32[8]
  %y = mul(%x, %k) : f32[8]
  %d = mul(%tangents_1, %k) : f32[8]
  return %y, %d
}
"""


@pytest.mark.parametrize("inputs", ["true", "false"])
def test_what_was_drawn_is_kept(inputs: str) -> None:
    result = Pipeline(f"partition{{tangents=1, inputs={inputs}}}").run(parse(DROPOUT))
    block = parts(result.func)["backward"].blocks[0]
    assert str(block.params[0].attrs["name"]) in ("m", "k")
    assert not any(n.op == "opaque" for n in block.nodes)


def attention(width: int) -> str:
    """softmax(q k^T) v without the maximum, and the gradient of v."""
    q, s = f"f32[128, {width}]", "f32[128, 128]"
    return f"""func @joint(%q: {q}, %k: {q}, %v: {q}, %tangents_1: {q}) -> ({q}, {q}) at tensor {{
  %s = dot(%q, %k) {{rule="m d, n d -> m n"}} : {s}
  %e = exp(%s) : {s}
  %l = reduce(%e) {{axes=[1], kind="sum"}} : f32[128]
  %b = broadcast(%l) {{axes=[0]}} : {s}
  %p = div(%e, %b) : {s}
  %o = dot(%p, %v) {{rule="m n, n d -> m d"}} : {q}
  %dv = dot(%p, %tangents_1) {{rule="m n, m d -> n d"}} : {q}
  return %o, %dv
}}
"""


@pytest.mark.parametrize(
    ("width", "balance", "kept"),
    [
        (16, 150, {"q", "k", "l"}),  # its flops cost less than its bytes
        (16, 2, {"p"}),
        (16, 0, {"p"}),  # where a product always is in memory
        (64, 150, {"p"}),  # a table no larger than its operands
    ],
)
def test_a_product_is_recomputed_where_its_flops_cost_less(
    width: int, balance: int, kept: set[str]
) -> None:
    given, _ = cut(attention(width), f"tangents=1, balance={balance}")
    assert {*given} == {*kept, "tangents_1"}


MASK = """func @joint(%x: f32[64, 64], %tangents_1: f32[64, 64]) \
-> (f32[64, 64], f32[64, 64]) at tensor {
  %i = iota() {axis=0} : i64[64, 64]
  %j = iota() {axis=1} : i64[64, 64]
  %m = lt(%i, %j) : bool[64, 64]
  %y = select(%m, 0.0:f32, %x) : f32[64, 64]
  %d = select(%m, 0.0:f32, %tangents_1) : f32[64, 64]
  return %y, %d
}
"""


def test_formulas_are_not_kept() -> None:
    given, notes = cut(MASK)
    assert given == ["tangents_1"]
    assert notes == [
        "kept for the backward pass: 0 inputs, 0 values more (0 B of traffic);"
        " recomputed: 0 values (0 B)"
    ]


TIES = """func @joint(%x: f32[16, 256], %tangents_1: f32[16]) \
-> (f32[16], f32[16, 256]) at tensor {
  %a = reduce(%x) {axes=[1], kind="max"} : f32[16]
  %b = broadcast(%a) {axes=[0]} : f32[16, 256]
  %q = eq(%x, %b) : bool[16, 256]
  %c = cast(%q) : f32[16, 256]
  %n = reduce(%c) {axes=[1], kind="sum"} : f32[16]
  %g = div(%tangents_1, %n) : f32[16]
  %h = broadcast(%g) {axes=[0]} : f32[16, 256]
  %d = mul(%c, %h) : f32[16, 256]
  return %a, %d
}
"""


def test_what_no_gradient_is_in_may_be_computed_by_the_forward_pass() -> None:
    """Ties of a maximum are counted where its operand is read anyway."""
    result = Pipeline("partition{tangents=1}").run(parse(TIES), check=True)
    forward, backward = (parts(result.func)[n].blocks[0] for n in ("forward", "backward"))
    assert [n.op for n in backward.nodes].count("reduce") == 0
    assert [n.op for n in forward.nodes].count("reduce") == 2


TURNED = """func @joint(%x: f32[8, 16, 32], %w: f32[256, 64], %tangents_1: f32[16, 64]) \
-> (f32[16, 64], f32[256, 64]) at tensor {
  %e = opaque(%x) {call="[]", effect=0, target="torch:aten.bernoulli.p"} : f32[8, 16, 32]
  %t = transpose(%e) {perm=[1, 0, 2]} : f32[16, 8, 32]
  %r = reshape(%t) : f32[16, 256]
  %y = dot(%r, %w) {rule="m k, k n -> m n"} : f32[16, 64]
  %d = dot(%r, %tangents_1) {rule="m k, m n -> k n"} : f32[256, 64]
  return %y, %d
}
"""


def test_what_is_kept_has_its_axes_as_its_readers_have_them() -> None:
    def given(text: str) -> str:
        result = Pipeline("partition{tangents=1}").run(parse(text))
        return str(parts(result.func)["backward"].blocks[0].params[0].attrs["name"])

    assert given(TURNED) == "r"
    other = TURNED.replace("%y = dot(%r", "%q = reshape(%e) : f32[16, 256]\n  %y = dot(%q")
    assert given(other) == "e"  # in memory as another reader has it


@pytest.mark.parametrize("options", ["results=3", "results=0", "tangents=4"])
def test_a_cut_that_is_none(options: str) -> None:
    with pytest.raises(StackError, match="has 2 results and 3 parameters"):
        Pipeline(f"partition{{{options}}}").run(parse(STEP))


def test_a_forward_pass_that_reads_a_gradient() -> None:
    with pytest.raises(StackError, match="reads a gradient"):
        Pipeline("partition{results=2, tangents=1}").run(_with_third(STEP))


def _with_third(text: str) -> Func:
    text = text.replace("f32[64, 64]) at tensor", "f32[64, 64], f32[32, 64]) at tensor")
    return parse(text.replace("return %t, %dw", "return %t, %dw, %g"))


# ---- the network


def cheapest(size: int, edges: Sequence[tuple[int, int, int]]) -> int:
    """The price of the cheapest cut, by trying all of them."""
    others = range(2, size)
    found = INFINITE
    for count in range(len(others) + 1):
        for chosen in itertools.combinations(others, count):
            near = {SOURCE, *chosen}
            found = min(found, sum(c for a, b, c in edges if a in near and b not in near))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_cuts_of_random_networks(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 9)
    pairs = [(rng.randrange(size), rng.randrange(size)) for _ in range(rng.randint(1, 24))]
    edges = [(a, b, rng.randint(0, 9)) for a, b in pairs if a != b]
    network = Network(size)
    for edge in edges:
        network.add(*edge)
    near = network.source_side()
    assert SOURCE in near
    assert SINK not in near
    price = sum(c for a, b, c in edges if a in near and b not in near)
    assert price == cheapest(size, edges)


def test_a_network_without_a_cut() -> None:
    network = Network(3)
    network.add(SOURCE, 2, INFINITE)
    network.add(2, SINK, INFINITE)
    with pytest.raises(ValueError, match="no cut"):
        network.source_side()
