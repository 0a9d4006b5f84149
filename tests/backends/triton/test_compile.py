"""Kernels to machine code for Hopper, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from kernel_cases import group_of

import stack
from stack.backends.device.tools import disassemble, find_tool
from stack.backends.triton import BACKEND
from stack.backends.triton.build import build, capability
from stack.backends.triton.compiler import Compiler
from stack.backends.triton.expressions import REFUSED
from stack.backends.triton.printer import print_kernel
from stack.errors import UsageError
from stack.ir import DTYPES, Block, Builder, Func, Node
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.passes.policies.lowerings import lowering_of
from stack.rewrite import Pipeline
from stack.rewrite.engine import Replacement, replace
from stack.run.backend import Kernel
from stack.schedule import with_schedules
from stack.target import as_gpu

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
functional = torch.nn.functional

needs_tools = pytest.mark.skipif(
    find_tool("cuobjdump") is None, reason="registers and SASS are read by cuobjdump"
)
SHARED = 232448  # bytes that one program may have on Hopper


def inspected(program: Callable[..., Any], *args: Any) -> tuple[Kernel, dict[str, str]]:
    """The one kernel of a program, and its PTX and SASS."""
    stages = ",".join(spec for _, spec in BACKEND.lowering.stages)
    func = Pipeline(stages).run(stack.trace(program, *args))
    assert BACKEND.inspect is not None
    (kernel, *_), artifacts = BACKEND.inspect(func.func, {"target": "sm_90"})  # a merge may follow
    texts: dict[str, str] = {}
    for name in ("ptx", "sass"):
        made = artifacts[name]
        texts[name] = made if isinstance(made, str) else made()
    return kernel, texts


def narrow(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def check_resources(kernel: Kernel) -> None:
    assert kernel.kind == "generated"
    assert kernel.resources["shared"] <= SHARED
    assert 0 < kernel.resources["registers"] <= 255


@needs_tools
def test_elementwise() -> None:
    kernel, texts = inspected(lambda x, y: torch.tanh(x) + y, narrow(1024, 512), narrow(512))
    check_resources(kernel)
    assert kernel.resources["stack"] == 0
    assert "sm_90" in texts["ptx"]
    assert re.search(r"LDG\.E\.(64|128)", texts["sass"])


@needs_tools
def test_a_norm_holds_its_row() -> None:
    kernel, texts = inspected(
        lambda x, w: functional.layer_norm(x, (512,), w), narrow(1024, 512), narrow(512)
    )
    check_resources(kernel)
    assert kernel.resources["stack"] == 0
    assert kernel.resources["programs"] <= 1024
    assert "MUFU.RSQ" in texts["sass"]


@needs_tools
def test_a_product_uses_tensor_cores_and_bulk_copies() -> None:
    kernel, texts = inspected(
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
        narrow(2048, 512),
        narrow(1024, 512),
        narrow(1024),
    )
    check_resources(kernel)
    assert "HGMMA" in texts["sass"]
    assert "UTMALDG" in texts["sass"]


@needs_tools
@pytest.mark.parametrize("rule", ["m k, k n -> m n", "k m, k n -> m n"])
def test_a_product_of_ragged_rows_uses_bulk_copies(rule: str) -> None:
    """Through a copy with padding; what is sliced off again is read by nobody."""
    from stack.ir import param, tensor

    x = param("x", tensor("bf16", 2048, 1029))
    w = param("w", tensor("bf16", 1029 if rule[0] == "m" else 2048, 1024))
    b = Builder()
    func = b.func("main", [x, w], [b.exp(b.dot(x, w, rule=rule))])
    func = Pipeline(",".join(spec for _, spec in BACKEND.lowering.stages)).run(func).func
    assert BACKEND.inspect is not None
    (group,) = (n for n in func.nodes if "dot" in n.attrs["ops"])
    params = [param(f"p{i}", a.type) for i, a in enumerate(group.args)]
    alone = b.func("main", params, [Node("kernel", params, group.attrs, group.type, group.blocks)])
    _, artifacts = BACKEND.inspect(alone, {"target": "sm_90"})
    text = artifacts["sass"]
    sass = text if isinstance(text, str) else text()
    assert "HGMMA" in sass
    assert "UTMALDG" in sass
    assert "LDG.E.U16" not in sass


@needs_tools
def test_a_causal_stream() -> None:
    from stack.demos.gpu_attention import causal

    kernel, texts = inspected(causal, *(narrow(1, 2, 512, 64) for _ in range(3)))
    check_resources(kernel)
    assert texts["sass"].count("HGMMA") >= 2
    assert "UTMALDG" in texts["sass"]
    assert "MUFU.EX2" in texts["sass"]


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas says what is serialized")
@pytest.mark.parametrize(("tile", "why"), [
    ("m=128@grid k=128@serial warps=4 stages=2", "serialized: insufficient register resources"),
    ("m=64@grid k=64@serial warps=4 stages=2", ""),
])  # fmt: skip
def test_what_the_assembler_says_of_products(tile: str, why: str) -> None:
    from stack.demos.gpu_attention import full

    func = stack.trace(full, *(narrow(1, 2, 512, 128) for _ in range(3)))
    for _, passes in BACKEND.lowering.stages[:-1]:
        func = Pipeline(passes).run(func).func
    (group,) = (n for n in func.nodes if "schedule" in n.attrs)
    body = replace(func.body, {group: Replacement(with_schedules(group, (tile,)))})
    func = Pipeline(BACKEND.lowering.stages[-1][1]).run(Func(func.name, body, func.level)).func
    assert BACKEND.inspect is not None
    (kernel,), _ = BACKEND.inspect(func, {"target": "sm_90"})
    assert why in kernel.warning and bool(why) == bool(kernel.warning)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_of_a_loop_are_widened_by_one_instruction(dtype: Any) -> None:
    """Tiles are widened by one instruction if products wait for them; others here stay short."""
    from stack.demos.gpu_attention import bias

    q, added = torch.zeros(1, 2, 512, 64, dtype=dtype), torch.zeros(2, 512, 512, dtype=dtype)
    func = stack.trace(bias, q, q, q, added)
    stages = ",".join(spec for _, spec in BACKEND.lowering.stages)
    compiler = Compiler(Pipeline(stages).run(func).func, "sm_90")
    source = compiler.source(next(n for n in compiler.func.nodes if n.op == "kernel"))
    is_widened = dtype == torch.bfloat16
    assert source.text.count("= widen_bf16(") == is_widened
    if is_widened:
        assert build(source, "sm_90").stages["ptx"].count("and.b32") >= 32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "axis"), [((8, 131072), 1), ((131072, 64), 0)])
def test_blocks_of_rows_and_columns_are_widened_by_one_instruction(
    shape: tuple[int, ...], axis: int, dtype: Any
) -> None:
    """A block of columns is transposed after it was loaded."""
    func = stack.trace(lambda x: x.logsumexp(axis), torch.zeros(shape, dtype=dtype))
    stages = ",".join(spec for _, spec in BACKEND.lowering.stages)
    compiler = Compiler(Pipeline(stages).run(func).func, "sm_90")
    source = compiler.source(next(n for n in compiler.func.nodes if n.op == "kernel"))
    assert "num_stages=" in source.text
    assert source.text.count("= widen_bf16(") == (dtype == torch.bfloat16)


@pytest.mark.parametrize("rounds", [False, True])
def test_a_product_is_not_contracted_outside_of_matmuls(rounds: bool) -> None:
    """Two kernels that compute a value must agree to the last bit: max pooling compares them."""
    stages = ["rounding"] * rounds + [spec for _, spec in BACKEND.lowering.stages]
    x = narrow(4096)
    func = Pipeline(",".join(stages)).run(stack.trace(lambda x, y: (x * y - x) * y + x, x, x)).func
    (kernel,) = (n for n in func.nodes if n.op == "kernel")
    source = Compiler(func, "sm_90").source(kernel)
    assert "fma.rn" not in build(source, "sm_90").stages["ptx"]


@pytest.mark.slow
@needs_tools
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", ["alibi", "softcap", "window", "gqa", "differential", "sigmoid"])
def test_variants(name: str, width: int) -> None:
    from stack.demos.gpu_attention import VARIANTS

    q = narrow(1, 4, 1024, width)
    k = narrow(1, 1 if name == "gqa" else 4, 1024, width)
    args = {"alibi": [q, k, k, torch.ones(4)], "differential": [q, k, q, k, k]}
    kernel, texts = inspected(VARIANTS[name], *args.get(name, [q, k, k]))
    check_resources(kernel)
    assert "HGMMA" in texts["sass"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u32", "bool"]
)
def test_every_elementwise_op(dtype: str) -> None:
    """All ops that take the type, as one kernel."""
    kind = "b" if dtype == "bool" else "f" if dtype == "bf16" else dtype[0]

    def make(b: Builder, x: Node, y: Node) -> tuple[Node, ...]:
        ones = [n for n, (kinds, _, _) in UNARY.items() if kind in kinds and n not in REFUSED]
        twos = [n for n, (kinds, _, _) in BINARY.items() if kind in kinds]
        if kind != "f":
            twos = [n for n in twos if n != "pow"]
        made = [b.op(n, [x], {}) for n in ones]
        return (*made, *(b.op(n, [x, y], {}) for n in (*twos, *COMPARE)))

    kernel = lowering_of(group_of(make, [(dtype, 100), (dtype, 100)]), as_gpu(None)).kernel()
    binary = build(print_kernel(kernel, "kernel"), "sm_90")
    assert binary.cubin.startswith(b"\x7fELF")
    assert "EXIT" in disassemble(binary.cubin, lambda *_: "")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8", "bool"])
def test_numbers_alone(dtype: str) -> None:
    """Ops all of whose operands are numbers: those of Python have no methods and no type."""

    def make(b: Builder, x: Node) -> tuple[Node, ...]:
        one = b.const(1, dtype)
        wide = b.broadcast(one, axes=(), type=x.type)
        cast = b.cast(wide, type=x.type.with_dtype(DTYPES["f64"]))
        return cast, b.eq(wide, one), b.select(b.eq(x, x), one, wide)

    kernel = lowering_of(group_of(make, [(dtype, 3, 40)]), as_gpu(None)).kernel()
    assert build(print_kernel(kernel, "kernel"), "sm_90").cubin


def test_targets() -> None:
    assert capability("sm_90") == capability("sm_90a") == 90
    with pytest.raises(UsageError, match="gfx90a"):
        capability("gfx90a")


def test_a_product_of_more_elements_than_32_bits_count() -> None:
    """Offsets have 64 bits, places in a descriptor's matrix 32."""
    text = """func @f(%x: bf16[300000, 8192], %w: bf16[8192, 32]) -> (bf16[300000, 32]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : bf16[300000, 32]
  return %y
}
"""
    passes = ",".join(spec for _, spec in BACKEND.lowering.stages)
    func = Pipeline(passes).run(stack.parse(text)).func
    assert BACKEND.inspect is not None
    (kernel,), _ = BACKEND.inspect(func, {"target": "sm_90"})
    assert "tl.int64" in kernel.text
    assert ".to(tl.int32)" in kernel.text


def test_equal_text_of_other_element_types_and_warps_is_other_code() -> None:
    """The text of a kernel names neither, so the cache of kernels has them in its key."""

    def double(b: Builder, x: Node) -> Node:
        return b.add(x, x)

    kernels = [
        lowering_of(group_of(double, [(d, 4096)]), as_gpu(None)).kernel()
        for d in ("f32", "i32", "f64")
    ]
    wide = kernels[0]
    kernels.append(Node("kernel", wide.args, {**wide.attrs, "warps": 8}, wide.type, wide.blocks))
    func = Func("several", Block([a for k in kernels for a in k.args], kernels), "tile")
    compiler = Compiler(func, "sm_90")
    compiler.build_all(None)
    sources = [compiler.source(kernel) for kernel in kernels]
    assert len({source.text for source in sources}) == 1
    codes = [compiler.binary(source) for source in sources]
    added = [re.findall(r"fadd (\w+)", code.stages["llir"])[:1] for code in codes]
    assert added == [["float"], [], ["double"], ["float"]]
    assert [code.meta["num_warps"] for code in codes] == [s.warps for s in sources]
    assert sources[0].warps != sources[-1].warps


@pytest.mark.parametrize("asked", [' precision="tf32",', ""])
def test_tf32_is_rounded_to_the_nearest(asked: str) -> None:
    """Tensor cores cut off towards zero, and the errors of a sum would have one sign."""
    func = stack.parse(
        "func @f(%a: f32[64, 96], %b: f32[96, 64]) -> (f32[64, 64]) at tensor {\n"
        f'  %c = dot(%a, %b) {{{asked.strip()} rule="m k, k n -> m n"}} : f32[64, 64]\n'
        "  return %c\n}\n"
    )
    stages = ",".join(spec for _, spec in BACKEND.lowering.stages)
    assert BACKEND.inspect is not None
    _, artifacts = BACKEND.inspect(Pipeline(stages).run(func).func, {"target": "sm_90"})
    made = artifacts["ptx"]
    ptx = made if isinstance(made, str) else made()
    assert ("cvt.rna.tf32.f32" in ptx) == bool(asked)
