"""Text of kernels."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest
from gpu_cases import bias_gelu, epilogue_of, product_of, residual
from kernel_cases import group_of, in_blocks, layernorm, pointwise, softmax

from stack.backends.triton.expressions import INFIX
from stack.backends.triton.printer import print_kernel
from stack.backends.triton.source import Source
from stack.errors import StackError
from stack.ir import Builder, Node, param, parse, tensor
from stack.passes.policies.gpu_streams import ProductStreams
from stack.passes.policies.lowerings import lowering_of
from stack.passes.tiling.single_ops import alone
from stack.rewrite import Pipeline
from stack.target import as_gpu


def printed(group: Node, **tile: int) -> Source:
    return print_kernel(
        lowering_of(in_blocks(group, **tile), as_gpu(None)).kernel(), "kernel", readable=True
    )


def body(source: Source) -> list[str]:
    """Lines of the kernel without those before it."""
    return source.text[source.text.index("def kernel(") :].rstrip().split("\n")


def test_a_small_kernel() -> None:
    source = printed(group_of(pointwise, [("f32", 3, 4096)]))
    assert body(source) == [
        "def kernel(p0, o0):",
        "    pid = tl.program_id(0)",
        "    j_0 = (pid) % 4",
        "    i = pid // 4",
        "    mul = j_0 * 1024",
        "    load = tl.load(p0 + i * 4096 + (mul + tl.arange(0, 1024)))",
        "    neg = -load",
        "    exp = libdevice.exp(neg)",
        "    tl.store(o0 + i * 4096 + (mul + tl.arange(0, 1024)), exp)",
    ]
    assert source.programs == 12


@pytest.mark.parametrize("size", [64, 100, 1024, 1031, 4096])
def test_masks_where_a_size_does_not_divide_alone(size: int) -> None:
    for build, specs in (
        (pointwise, [("f32", 4, size)]),
        (softmax, [("f32", 2, 4, size), ("f32", 4, size)]),
        (layernorm, [("f32", 8, size), ("f32", size), ("f32", size)]),
    ):
        text = "\n".join(body(printed(group_of(build, specs))))
        # what is not a power of two is the length of no tile
        assert ("mask=" in text) == (size & (size - 1) != 0), text


def test_a_tile_that_begins_past_an_array_is_masked() -> None:
    """Joined arrays share tiles; those of the second array are all past the first one."""
    func = parse("""
        func @f(%x: f32[2, 128, 64], %y: f32[2, 128, 64]) -> (f32[2, 128, 128]) at tensor {
          %turned = transpose(%x) {perm=[0, 2, 1]} : f32[2, 64, 128]
          %other = transpose(%y) {perm=[0, 2, 1]} : f32[2, 64, 128]
          %both = concat(%turned, %other) {axis=1} : f32[2, 128, 128]
          return %both
        }""")
    made = Pipeline("fuse,blocks").run(func, target=as_gpu(None)).func
    (kernel,) = [n for n in made.nodes if n.op == "kernel"]
    loads = [
        line for line in body(print_kernel(kernel, "kernel", readable=True)) if "tl.load(" in line
    ]
    assert len(loads) == 2
    assert all("mask=" in line for line in loads), loads


def test_products_of_whole_tiles_go_through_descriptors() -> None:
    group = epilogue_of(bias_gelu, [(256, 512), (384, 512), (384,)], "bf16")
    source = printed(group, m=128, n=128, k=64)
    text = "\n".join(body(source))
    assert "mask=" not in text
    assert text.count("tl.dot(") == 1
    made = {d.memory: (d.shape, d.block) for d in source.descriptors}
    assert made["p0"] == ((256, 512), (128, 64))
    assert made["p1"] == ((384, 512), (128, 64))
    assert made["o0"][0] == (256, 384)
    assert source.programs == 2 * 3


def test_a_product_goes_on_from_another() -> None:
    """Scores of a stream that are a sum of two, as where positions have features of their own."""
    func = parse("""
func @main(%q: bf16[64, 64], %k: bf16[512, 64], %r: bf16[64, 16], %p: bf16[512, 16])
    -> (f32[64, 64]) at tensor {
  %x = dot(%q, %k) {rule="m d, k d -> m k"} : f32[64, 512]
  %y = dot(%r, %p) {rule="m d, k d -> m k"} : f32[64, 512]
  %s = add(%x, %y) : f32[64, 512]
  %m = reduce(%s) {axes=[1], kind="max"} : f32[64]
  %b = broadcast(%m) {axes=[0]} : f32[64, 512]
  %d = sub(%s, %b) : f32[64, 512]
  %e = exp(%d) : f32[64, 512]
  %c = cast(%e) : bf16[64, 512]
  %z = dot(%c, %k) {rule="m k, k n -> m n"} : f32[64, 64]
  return %z
}""")
    (stream,) = Pipeline("stream").run(func).func.nodes
    text = "\n".join(
        body(print_kernel(ProductStreams(stream, as_gpu(None)).kernel(), "kernel", readable=True))
    )
    first = re.search(r"(\w+) = tl.dot\(\w+, tl.trans\(\w+\)\)", text)
    assert first, text
    assert re.search(rf"tl.dot\(\w+, tl.trans\(\w+\), {first[1]}\)", text), text


def test_rows_that_end_inside_memory_are_matrices_of_their_own() -> None:
    """The last tile of 40 rows must not read those of the next matrix."""
    source = printed(product_of("a m k, a k n -> a m n", (3, 40, 64), (3, 64, 32), "bf16"))
    made = {d.memory: (d.shape, d.block) for d in source.descriptors}
    assert made["p0"] == ((3, 40, 64), (1, 64, 64))
    assert made["p1"] == ((192, 32), (64, 32))
    assert made["o0"] == ((3, 40, 32), (1, 64, 32))
    assert "mask=" not in source.text


def test_rows_that_no_descriptor_takes_are_pointers() -> None:
    """A row of 70 bf16 is no multiple of 16 bytes."""
    source = printed(product_of("m k, k n -> m n", (64, 70), (70, 70), "bf16"))
    assert not source.descriptors
    assert "mask=" in source.text


@pytest.mark.parametrize("name", ["lambda", "while", "x.y", "2nd", "tl", "pid", "min", "nan_max"])
def test_names_that_python_or_the_module_have(name: str) -> None:
    b = Builder()
    p = param(name, tensor("f32", 3, 40))
    made = b.exp(p)
    b.names[made] = name
    block = b.block([p], [b.abs(made)])
    outside = param("x", tensor("f32", 3, 40))
    group = Builder().fusion(outside, kind="loop", name="lambda", blocks=(block,))
    source = print_kernel(lowering_of(group, as_gpu(None)).kernel(), "kernel")
    tree = ast.parse(source.text)
    (kernel,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "kernel")
    assigned = [
        t.id
        for n in ast.walk(kernel)
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    ]
    assert len(assigned) == len(set(assigned))
    assert not {"tl", "min", "nan_max"}.intersection(assigned)


def test_the_text_is_that_of_the_body() -> None:
    """Equal kernels have equal text, whatever their names and places."""
    group = group_of(pointwise, [("f32", 3, 40)])
    first, second = (
        print_kernel(lowering_of(group, as_gpu(None)).kernel(), "kernel") for _ in range(2)
    )
    assert first.text == second.text


def test_what_it_has_no_code_for_is_named() -> None:
    b = Builder()
    p = param("p", tensor("f32", 40))
    kernel = lowering_of(alone(b.op("digamma", [p], {})), as_gpu(None)).kernel()
    with pytest.raises((StackError, KeyError), match="digamma"):
        print_kernel(kernel, "kernel")


@pytest.mark.parametrize("persistent", ["", " persistent"])
def test_programs_of_two_tiles(persistent: str) -> None:
    """20 lines of 13 tiles, among 286 tiles of 16 x 32, fill 132 processors twice."""
    group = epilogue_of(bias_gelu, [(340, 32), (400, 32), (400,)], "bf16")
    attrs = {**group.attrs, "schedule": f"m=16+32 n=32+16 k=32 warps=4 stages=2{persistent}"}
    source = printed(Node(group.op, group.args, attrs, group.type, group.blocks))
    text = source.text
    assert text.count("tl.dot(") == 2
    assert ("    if pid >= 260:\n" in text) == (not persistent)
    assert source.programs == (132 if persistent else 260 + 25)
    if persistent:
        assert "tl.range(tl.program_id(0), 260, 132, flatten=True)" in text
        assert "tl.range(tl.program_id(0), 25, 132)" in text
    first, last = text.split("    if pid >= 260:\n" if not persistent else "25, 132)")
    names = set(re.findall(r"^ {8}(\w+) = ", first, re.M))
    defined = set(re.findall(r"^ +(\w+) = ", last, re.M))
    assert not (names - defined) & set(re.findall(r"\w+", last))


def test_what_is_f32_alone_keeps_its_last_digits() -> None:
    """Results of 16 bits hide what fast exponentials and quotients lose; others show it."""

    def build(b: Builder, x: Node, w: Node) -> Node:
        y = b.dot(x, w, rule="m k, n k -> m n")
        return b.div(b.exp(y), b.add(b.sigmoid(y), b.erf(y)))

    tile = {"m": 64, "n": 64, "k": 32}
    shapes = [(256, 512), (384, 512)]
    fine = printed(epilogue_of(build, shapes, "f32"), **tile).text
    assert fine.count('input_precision="bf16x6"') == fine.count("tl.dot(") == 1
    assert fine.count("libdevice.exp(") == 2 and fine.count("tl.div_rn(") == 2
    assert "erf_f32(" in fine and "erf_ratio(" not in fine
    coarse = "\n".join(body(printed(epilogue_of(build, shapes, "bf16"), **tile)))
    assert "precision" not in coarse and "libdevice" not in coarse and "div_rn" not in coarse
    assert "erf_ratio(" in coarse


@pytest.mark.parametrize(("rows", "large"), [(1 << 13, True), (16, False)])
def test_large_results_leave_the_cache_to_others(rows: int, large: bool) -> None:
    text = print_kernel(
        lowering_of(group_of(pointwise, [("f32", rows, 4096)]), as_gpu(None)).kernel(), "k"
    ).text
    assert ('cache_modifier=".cs"' in text) == large


def test_products_are_found_in_the_cache() -> None:
    source = printed(product_of("m k, k n -> m n", (1 << 13, 70), (70, 1 << 13), "bf16"))
    assert "tl.store(" in source.text or ".store(" in source.text
    assert "cache_modifier" not in source.text


def test_what_a_product_is_added_to_comes_through_a_descriptor() -> None:
    """Not by a pointer to each element, in registers; a bias is one line."""
    wide = printed(epilogue_of(residual, [(64, 64), (64, 128), (64, 128)], "bf16")).text
    assert "p2_tiles.load(" in wide
    assert "tl.load(" not in wide
    line = printed(epilogue_of(bias_gelu, [(64, 64), (128, 64), (128,)], "bf16")).text
    assert "tl.load(p2" in line


def test_rows_that_do_not_fill_16_bytes_come_by_pointers() -> None:
    text = printed(epilogue_of(residual, [(64, 64), (64, 71), (64, 71)], "bf16")).text
    assert "tl.load(p2" in text


@pytest.mark.parametrize("op", INFIX)
def test_operators_mean_the_same_in_python(op: str) -> None:
    x, y = np.array([1, 2, 3]), np.array([2, 2, 2])
    b = Builder()
    params = [param(name, tensor("i64", 3)) for name in "xy"]
    func = b.func("f", params, [b.op(op, params)])
    np.testing.assert_array_equal(eval(f"x {INFIX[op]} y"), func.interpret(x, y))
