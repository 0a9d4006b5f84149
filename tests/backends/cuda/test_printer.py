"""CUDA C++ from the loop level: barriers, wide accesses, registers, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_cases import RUNGS, gpu_kernel, product_of
from kernel_cases import group_of, layernorm, softmax

from stack.backends.cuda.expressions import _COMPARE as COMPARE
from stack.backends.cuda.expressions import Unprintable, literal
from stack.backends.cuda.printer import print_kernel
from stack.ir import DTYPES, Block, Builder, Node, param, parse, tensor
from stack.ir.bounds import Integers

MEMORY = "f32[64] in global"


def kernel_of(lines: str, memory: str = MEMORY, inputs: str = "%p0") -> Node:
    """A kernel whose block is these lines; they end in what is returned."""
    kind = memory.removesuffix(" in global")
    func = parse(f"""
func @main(%x: {kind}) -> ({kind}) at tensor {{
  %k = kernel(%x) {{level="loop", name="k", warps=2}} : {kind} {{({inputs}: {memory}, %o: {memory})
{lines}
  }}
  return %k
}}
""")
    return func.nodes[0]


def text_of(lines: str) -> str:
    text = print_kernel(kernel_of(lines), "k", readable=True).text
    return text[text.index('extern "C"') :]


def exchange(second: str) -> str:
    """Every thread stores to shared memory, then reads at `second`."""
    i, f = "i32<2x32>", "f32<2x32>"
    return f"""
    %loop = loop(%o) {{kind="grid"}} : {MEMORY} {{(%block < 1, %o0: {MEMORY})
      %s = alloc(%block) {{name="s"}} : f32[64] in shared
      %w = iota() {{axis=0}} : {i}
      %l = iota() {{axis=1}} : {i}
      %wide = mul(%w, 32:i32) : {i}
      %t = add(%wide, %l) : {i}
      %v = load(%p0, %t) : {f}
      %first = store(%s, %v, %t) : f32[64] in shared
      %back = sub(63:i32, %t) : {i}
      %v2 = load({second}, %back) : {f}
      %st2 = store(%o0, %v2, %t) : {MEMORY}
      return %st2
    }}
    return %loop
"""


def test_a_barrier_lies_between_phases_that_meet_and_nowhere_else() -> None:
    assert text_of(exchange("%first")).count("__syncthreads();") == 1
    assert "__syncthreads" not in text_of(exchange("%p0"))


def test_a_loop_meets_its_own_last_turn() -> None:
    group = product_of("m k, k n -> m n", (256, 512), (512, 256), "bf16")
    text = print_kernel(gpu_kernel(group, "m=32 n=32 k=32 stages=1", "sm_80"), "k").text
    turn = text[text.index("for (int v_") :].partition("store_run<2>")[0]
    # once before the blocks of depth are replaced, once before they are read
    assert turn.count("__syncthreads();") == 2, text


def test_a_loop_that_only_reads_waits_once_before_it() -> None:
    group = product_of("m k, k n -> m n", (256, 512), (512, 256), "f32")
    text = print_kernel(gpu_kernel(group, RUNGS["register"]), "k").text
    turn = text[text.index("for (int v_") :]
    products = turn[turn.index("for (int v_", 1) :]
    assert turn.count("__syncthreads();") == 2
    assert "__syncthreads();" not in products


def test_pipelined_products_have_one_barrier_for_each_block_of_depth() -> None:
    large = (2048, 2048)
    group = product_of("m k, k n -> m n", large, large, "bf16")
    source = print_kernel(gpu_kernel(group, RUNGS["pipelined"], "sm_80"), "k")
    turn = source.text[source.text.index("copies_wait<2>();") :].partition("}\n  copies_wait")[0]
    assert turn.count("__syncthreads();") == 1
    assert source.text.count("copies_commit();") == 6  # of each operand, two ahead of the loop
    assert source.shared > 48 << 10
    assert source.static_shared == 0


def test_reductions_are_shuffles_then_shared_memory() -> None:
    short = print_kernel(gpu_kernel(group_of(softmax, [("f32", 4, 8, 128), ("f32", 8, 128)])), "k")
    assert short.text.count("= shuffle_xor(") == 2 * 5
    assert "__shared__" not in short.text
    long = print_kernel(gpu_kernel(group_of(softmax, [("f32", 4, 8, 8192), ("f32", 8, 8192)])), "k")
    assert long.text.count("__syncthreads();") == 2
    assert long.static_shared > 0


def test_accesses_are_as_wide_as_alignment_is_known() -> None:
    def twice(b: Builder, x: Node) -> Node:
        return b.mul(x, 2.0)

    even = print_kernel(gpu_kernel(group_of(twice, [("f32", 1024, 256)])), "k").text
    assert "load_run<4>" in even
    assert "store_run<4>" in even
    # rows of 6 elements start at multiples of 8 bytes only
    narrow = print_kernel(gpu_kernel(group_of(twice, [("f32", 100_000, 6)])), "k").text
    assert "load_run<2>" in narrow
    assert "load_run<4>" not in narrow


def test_indices_are_32_bits_where_they_fit() -> None:
    def twice(b: Builder, x: Node) -> Node:
        return b.mul(x, 2.0)

    small = print_kernel(gpu_kernel(group_of(twice, [("f32", 1 << 20, 1 << 10)])), "k").text
    assert "long long" not in small
    large = print_kernel(gpu_kernel(group_of(twice, [("f32", 1 << 21, 1 << 11)])), "k").text
    assert "long long" in large


def test_source_lines_are_comments_and_names_are_kept() -> None:
    group = group_of(layernorm, [("f32", 6, 128), ("f32", 128), ("f32", 128)])
    kernel = gpu_kernel(group)
    readable = print_kernel(kernel, "k", readable=True).text
    assert "rsqrt_1[i] = rsqrtf(" in readable
    assert re.search(r"\brsqrt_1\b", print_kernel(kernel, "k").text) is None


def test_equal_kernels_have_equal_text() -> None:
    one = product_of("m k, k n -> m n", (64, 64), (64, 64), "bf16")
    texts = {print_kernel(gpu_kernel(one), "k").text for _ in range(2)}
    assert len(texts) == 1


def test_words_of_the_language_are_no_names() -> None:
    lines = exchange("%first").replace("%v2", "%double").replace("%back", "%register")
    assert " double = " not in text_of(lines)


def test_loops_that_no_thread_runs_are_refused() -> None:
    inner = """
      %p = loop(%st2) {kind="parallel"} : f32[64] in global {(%i < 2, %o1: f32[64] in global)
        return %o1
      }
      return %p
"""
    text = exchange("%first").replace("      return %st2\n", inner)
    with pytest.raises(Unprintable, match="parallel loop"):
        text_of(text)


def test_memory_that_no_thread_has_is_refused() -> None:
    with pytest.raises(Unprintable, match="memory in local"):
        text_of(exchange("%first").replace("in shared", "in local"))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "f32", "0.1f"),
        (1e-05, "f32", "1e-05f"),
        (3.0, "f64", "3.0"),
        (np.inf, "f32", "INFINITY_F32"),
        (-np.inf, "f64", "-INFINITY_F64"),
        (np.nan, "f32", "NAN_F32"),
        (True, "bool", "true"),
        (-(2**63), "i64", "(-9223372036854775807ll - 1)"),
        (2**40, "i64", "1099511627776ll"),
        (2**32 - 1, "u32", "4294967295u"),
        (1.5, "bf16", "narrow<bf16>(1.5f)"),
    ],
)
def test_literals(value: object, dtype: str, text: str) -> None:
    assert literal(value, DTYPES[dtype]) == text


def test_ranges_and_divisors() -> None:
    b, known = Builder(), Integers()
    i = Node("var", (), {"name": "i", "extent": 10}, tensor("i64"))
    j = Node("var", (), {"name": "j", "extent": 3}, tensor("i64"))
    at = b.add(b.mul(i, 12), b.mul(j, 4))
    assert known.range(at) == (0, 116)
    assert known.divisor(at) == 4
    assert known.range(b.sub(j, i)) == (-9, 2)
    assert known.range(b.div(at, 12)) == (0, 9)
    assert known.range(b.rem(at, 12)) == (0, 11)
    assert known.divisor(b.add(at, 2)) == 2
    assert known.range(b.mul(at, at)) == (0, 116 * 116)
    assert known.is_small(at)
    assert not known.is_small(b.mul(at, 1 << 40))
    x = Node("param", (), {"name": "x"}, tensor("i64"))
    assert known.range(b.add(x, 1)) is None
    two = b.loop(x, x, kind="serial", blocks=(_counting(),))
    assert known.range(b.item(two, index=0)) is None
    narrow = b.cast(i, type=tensor("i8"))
    assert known.range(b.mul(narrow, 100)) is None  # it may wrap


def test_carried_values_move_on_all_at_once() -> None:
    text = text_of(f"""
    %loop = loop(%o) {{kind="grid"}} : {MEMORY} {{(%block < 1, %o0: {MEMORY})
      %x = load(%p0, 0:i64) : f32[]
      %swap = loop(%x, 2.0:f32) {{kind="serial"}} : (f32[], f32[])
      {{(%n < 3, %first: f32[], %second: f32[])
        return %second, %first
      }}
      %a = item(%swap) {{index=0}} : f32[]
      %st = store(%o0, %a, 0:i64) : {MEMORY}
      return %st
    }}
    return %loop
""")
    turn = text[text.index("for (int n") :]
    copies = re.findall(r"const float (\w+) = (first|second);", turn)
    assert [c[1] for c in copies] == ["second", "first"]
    assert f"first = {copies[0][0]};" in turn
    assert f"second = {copies[1][0]};" in turn


def _counting() -> Block:
    kinds = [Node("var", (), {"name": n}, tensor("i64")) for n in "uv"]
    index = Node("var", (), {"name": "n", "extent": 3}, tensor("i64"))
    return Block((index, *kinds), [Builder().add(kinds[0], index), kinds[1]])


@pytest.mark.parametrize("op", COMPARE)
def test_comparisons_mean_the_same_in_c(op: str) -> None:
    x, y = np.array([1, 2, 3]), np.array([2, 2, 2])
    b = Builder()
    params = [param(name, tensor("i64", 3)) for name in "xy"]
    func = b.func("f", params, [b.op(op, params)])
    np.testing.assert_array_equal(eval(f"x {COMPARE[op]} y"), func.interpret(x, y))
