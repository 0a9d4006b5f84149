"""Every kind of kernel compiles for a GPU that is not here; the cache; the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    RUNGS,
    TURNED,
    Build,
    Shape,
    assert_near,
    epilogue_of,
    gpu_kernel,
    product_of,
)
from kernel_cases import CASES, Spec, group_of, random_array
from random_programs import random_program

from stack.backends.cuda import BACKEND, nvrtc
from stack.backends.cuda.compiler import compile_program, inspect_program
from stack.backends.cuda.printer import print_kernel
from stack.backends.cuda.values import Source
from stack.backends.device.tools import disassemble, find_tool
from stack.backends.runtime.plan import OnArrays
from stack.cli import main
from stack.errors import StackError, UsageError
from stack.ir import DTYPES, Builder, Func, Node, param, parse, tensor
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.node import walk
from stack.ir.refusal import KernelRefused
from stack.rewrite import Pipeline
from stack.run.cache import Cache
from stack.run.compile import build
from stack.run.record import Run
from stack.target import load

need = nvrtc.missing_compiler()
pytestmark = pytest.mark.skipif(need is not None, reason=str(need))
NO_BLOCKS = ("scatter_rows", "scatter_set", "running_max_back")  # a library does them
ROWS = [*(c for c in CASES if c[0].__name__ not in NO_BLOCKS), *TURNED]
TARGET = "sm_90"


def compiled(kernel: Node) -> nvrtc.Binary:
    source = print_kernel(kernel, "test", readable=True)
    return nvrtc.compile_cubin(source.text, source.name, TARGET)


@pytest.mark.parametrize(("build", "specs"), ROWS, ids=lambda c: getattr(c, "__name__", None))
def test_rows(build: Build, specs: list[Spec]) -> None:
    binary = compiled(gpu_kernel(group_of(build, specs)))
    assert binary.cubin[:4] == b"\x7fELF"
    assert binary.registers > 0
    assert binary.spilled == 0
    assert binary.stack == 0  # no registers went to memory


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_product_is_not_contracted_outside_of_matmuls(dtype: str) -> None:
    """Two kernels that compute a value must agree to the last bit: max pooling compares them."""

    def shifted(b: Builder, x: Node, y: Node) -> Node:
        return b.sub(b.add(b.mul(x, y), x), b.mul(y, y))

    kernel = gpu_kernel(group_of(shifted, [(dtype, 6, 40), (dtype, 6, 40)]))
    text = print_kernel(kernel, "test", readable=True).text
    assert "fma.rn" not in nvrtc.compile_ptx(text, TARGET)


@pytest.mark.parametrize("shape", [(1, 70, 64), (64, 70, 1), (1, 70, 1), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_of_one_row_or_column(
    shape: tuple[int, int, int], dtype: str, rng: np.random.Generator
) -> None:
    """Threads do them all; where no lane of a warp would have a result of its own, by blocks."""
    m, k, n = shape
    b = Builder()
    x, w = param("x", tensor(dtype, m, k)), param("w", tensor(dtype, k, n))
    func = b.func("main", [x, w], [b.dot(x, w, rule="m k, k n -> m n")])
    made: list[Func] = []

    def make(func: Func) -> object:
        made.append(func)
        return inspect_program(func, {"target": TARGET, "cache": False})

    build(func, BACKEND, Run(), make, target=load(TARGET))
    assert [n.op for n in made[-1].results] == ["kernel"]
    arrays = [random_array((dtype, *s), rng) for s in ((m, k), (k, n))]
    want = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    assert_near(made[-1].interpret(*arrays), want, dtype)


def test_what_cannot_be_printed_is_a_refused_kernel() -> None:
    text = """
func @main(%x: f32[8]) -> (f32[8]) at tensor {
  %k = kernel(%x) {level="loop", name="k"} : f32[8]
  {(%p0: f32[8] in global, %o0: f32[8] in global)
    %loop = loop(%o0) {kind="parallel"} : f32[8] in global {(%i < 8, %o: f32[8] in global)
      %v = load(%p0, %i) : f32[]
      %s = store(%o, %v, %i) : f32[8] in global
      return %s
    }
    return %loop
  }
  return %k
}
"""
    with pytest.raises(KernelRefused, match="kernel k: the cuda backend cannot print a parallel"):
        inspect_program(parse(text), {"target": TARGET, "cache": False})


@pytest.mark.every(5)
@pytest.mark.parametrize(("rule", "first", "second"), PRODUCTS[:12:2])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_products(rule: str, first: Shape, second: Shape, dtype: str) -> None:
    binary = compiled(gpu_kernel(product_of(rule, first, second, dtype)))
    assert binary.stack == 0


@pytest.mark.parametrize(("build", "shapes"), EPILOGUES, ids=lambda c: getattr(c, "__name__", None))
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_epilogues(build: Build, shapes: list[Shape], dtype: str) -> None:
    assert compiled(gpu_kernel(epilogue_of(build, shapes, dtype))).stack == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("rung", list(RUNGS))
def test_every_rung_keeps_its_sums_in_registers(rung: str) -> None:
    group = product_of("m k, k n -> m n", (1024, 1024), (1024, 1024), "bf16")
    binary = compiled(gpu_kernel(group, RUNGS[rung], "sm_80"))
    assert (binary.stack, binary.spilled) == (0, 0)
    if find_tool("nvdisasm") is not None:
        sass = disassemble(binary.cubin, lambda *_: "")
        assert ("HMMA" in sass) == (rung in ("tensor", "pipelined"))
        assert ("LDGSTS" in sass) == (rung == "pipelined")
        assert ("LDSM" in sass) == (rung in ("tensor", "pipelined"))


@pytest.mark.parametrize("kind", ["f32", "f64", "i32", "i64", "u8", "u32", "bool"])
def test_every_elementwise_op(kind: str) -> None:
    """One kernel with all ops of a type, each to an output of its own."""
    dtype = DTYPES[kind]

    def everything(b: Builder, x: Node, y: Node) -> tuple[Node, ...]:
        made: list[Node] = []
        for op, (kinds, _, _) in UNARY.items():
            if dtype.kind in kinds and op != "digamma":
                made.append(b.op(op, [x]))
        for op, (kinds, _, _) in BINARY.items():
            if dtype.kind in kinds and (op != "pow" or dtype.is_float):
                made.append(b.op(op, [x, y]))
        for op in COMPARE:
            made.append(b.select(b.op(op, [x, y]), x, y))
        for name in ("bool", "i8", "u16", "i32", "i64", "f16", "bf16", "f32", "f64"):
            made.append(b.cast(x, type=x.tensor.with_dtype(DTYPES[name])))
        return tuple(dict.fromkeys(m for m in made if m is not x))

    assert compiled(gpu_kernel(group_of(everything, [(kind, 4, 6), (kind, 4, 6)]))).registers > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and nan are meant
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_keep_their_meaning_and_compile(seed: int) -> None:
    program = random_program(30_000 + seed, small=True)
    func = program.func
    for _, spec in BACKEND.lowering.stages:
        func = Pipeline(spec).run(func).func
    wrong = program.compare(func.interpret(*program.inputs))
    assert not wrong, f"{wrong}\n{program.func}"
    for _, node in walk(func.body):
        if node.op == "kernel":
            assert compiled(node).registers > 0


def test_what_is_no_code_is_shown_by_line() -> None:
    with pytest.raises(StackError, match=r"for sm_90[\s\S]*storage class[\s\S]*1  bad"):
        nvrtc.compile_cubin("bad;", "k", TARGET)
    with pytest.raises(UsageError, match="is not a GPU"):
        nvrtc.compile_cubin("", "k", "h100")


def test_cache_keeps_code_and_what_it_takes(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1.0f; }'
    store = Cache(tmp_path)
    first = nvrtc.compile_cubin(text, "k", TARGET, store)
    (entry,) = (p for p in tmp_path.rglob("*") if p.is_file())
    assert nvrtc.compile_cubin(text, "k", TARGET, store) == first
    entry.write_bytes(entry.read_bytes()[:-7])  # half written
    assert nvrtc.compile_cubin(text, "k", TARGET, store) == first
    assert len(list(tmp_path.rglob("*.obj"))) == 1
    nvrtc.compile_cubin(text, "k", "sm_80", store)
    assert len(list(tmp_path.rglob("*.obj"))) == 2


PROGRAM = """
import torch

def block(x, w, g):
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], g)
    return torch.softmax(y @ w, -1) + x.transpose(0, 1)
"""


def test_dump_for_a_gpu_that_is_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("STACK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "p.py").write_text(PROGRAM)
    spec = ["-i", "f32[64,64]", "-i", "f32[64,64]", "-i", "f32[64]"]
    base = ["dump", f"{tmp_path}/p.py:block", *spec, "--frontend", "torch", "--backend", "cuda"]
    assert main([*base, "--target", TARGET, "-o", str(tmp_path / "run"), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in manifest["stages"]][-4:] == ["loop", "cuda", "ptx", "sass"]
    kernels = [k for k in manifest["kernels"] if k["kind"] == "generated"]
    assert kernels
    for kernel in kernels:
        assert kernel["resources"]["registers"] > 0
        assert kernel["resources"]["spilled"] == 0
        text = (tmp_path / "run" / kernel["file"]).read_text()
        assert "__global__" in text
        assert "p.py:" in text
    stages = {s["name"]: (tmp_path / "run" / s["file"]).read_text() for s in manifest["stages"]}
    assert ".target sm_90" in stages["ptx"]
    assert main([*base, "--target", "h100"]) == 2
    assert "no target, and no file, 'h100'" in capsys.readouterr().err


def test_without_a_gpu_running_is_refused_by_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if BACKEND.missing() is None:
        pytest.skip("there is a GPU here")
    pytest.importorskip("torch")
    (tmp_path / "p.py").write_text(PROGRAM)
    spec = ["-i", "f32[8,8]", "-i", "f32[8,8]", "-i", "f32[8]"]
    assert (
        main(
            [
                "dump",
                f"{tmp_path}/p.py:block",
                *spec,
                "--frontend",
                "torch",
                "--backend",
                "cuda",
                "--profile",
            ]
        )
        == 5
    )
    assert "no CUDA device" in capsys.readouterr().err


def test_equal_code_is_launched_on_its_own_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of two sizes have one code: each thread has 16 elements, and none is left out."""
    pytest.importorskip("torch")
    from stack.backends.cuda import launch

    ran: list[tuple[int, int]] = []

    def recorded(source: Source, *_: Any) -> OnArrays:
        threads = source.blocks * source.threads
        return OnArrays(lambda _, outs: ran.append((outs[0].numel(), threads)))

    monkeypatch.setattr(launch, "device_target", lambda _: TARGET)
    monkeypatch.setattr(launch, "loaded", recorded)
    lines = [f"  %z{n} = broadcast(0.0:f32) {{axes=[]}} : f32[{n}, 128]" for n in (96, 128)]
    types = "f32[96, 128], f32[128, 128]"
    body = "\n".join([*lines, "  return %z96, %z128"])
    func = parse(f"func @zeros() -> ({types}) at tensor {{\n{body}\n}}\n")
    for _, spec in BACKEND.lowering.stages:
        func = Pipeline(spec).run(func).func
    compile_program(func, {"device": "cpu", "cache": False}).run([])
    assert sorted(ran) == [(96 * 128, 96 * 8), (128 * 128, 128 * 8)]
