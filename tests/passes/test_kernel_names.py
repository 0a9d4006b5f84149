"""No name in a kernel carries a meaning: whatever values are called, the code is the same."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
import pytest

import stack
from stack.backends.cuda.printer import print_kernel as print_cuda
from stack.backends.triton.printer import print_kernel as print_triton
from stack.explore.lowering import Settings, inspect_target
from stack.explore.resume import executable_from, results_of
from stack.explore.target import ExampleCall
from stack.ir import Func, parse
from stack.ir.node import walk
from stack.ir.traits import is_input
from stack.ops import scan
from stack.rewrite import Pipeline
from stack.target import load

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

# what passes and printers call what they add to a kernel, and what they once looked for
HOSTILE = [
    *("p_n1", "p_m2", "k3", "kept", "o0_0", "p8", "o1", "lo", "hi", "step", "table", "slot0"),
    *("group", "panels", "panel", "partial", "block", "partial_block", "panel_block", "packed"),
    *("block1", "acc_b1", "c__1", "acc__2", "m__3", "m__1", "rows__1", "lines__1", "lane__2"),
    *("more__3", "b__1", "r__2", "once__1", "keep__1", "shared__1", "ahead__2", "part__3", "d__1"),
    *("t1", "k_1", "i1", "loop1", "sums1", "carry0_1", "pid", "tile", "first", "height", "left"),
    *("float", "int", "tl", "for", "threadIdx", "blockIdx", "shared_memory", "libdevice"),
]


def many(x, w, bias, v, res, long, wide):
    """A product with an epilogue, rows, columns, a long sum, strided rows, a stream."""
    hidden = torch.nn.functional.silu(x @ w + bias)
    shares = torch.softmax(hidden, -1)
    turned = (wide.t() * 2 + res).exp()
    seen = torch.softmax(x @ v.t() / 8, -1) @ v
    return hidden, shares.sum(0), turned, (long * long).sum(-1), seen


def arguments() -> list:
    g = torch.Generator().manual_seed(0)
    shapes = [(96, 64), (64, 80), (80,), (600, 64), (50, 96), (2, 5000), (96, 50)]
    return [torch.randn(s, generator=g) / 4 for s in shapes]


def renamed(text: str, hostile: list[str]) -> str:
    """The text with other names: first for parameters, loop variables and memory of kernels."""
    func = parse(text)
    inner = [n for k in func.nodes for b in k.blocks for _, n in walk(b)]
    first = [str(n.attrs["name"]) for n in inner if is_input(n) or n.op == "alloc"]
    found = dict.fromkeys([*first, *re.findall(r"%([A-Za-z_]\w*)", text)])
    spare = (f"q{i}" for i in count())
    table = dict(zip(found, [*hostile, *(next(spare) for _ in found)]))
    memory = re.sub(r'name="(\w+)"(?=\} : \S+ in (?:local|shared))', _name(table), text)
    return re.sub(r"%([A-Za-z_]\w*)", lambda m: f"%{table[m[1]]}", memory)


def _name(table: dict[str, str]):
    return lambda m: f'name="{table.get(m[1], m[1])}"'


def kernels(func: Func) -> list:
    return [n for n in func.nodes if n.op == "kernel"]


def structure(text: str) -> str:
    """Code with its identifiers numbered as they come."""
    numbers: dict[str, int] = {}
    return re.sub(r"[A-Za-z_]\w*", lambda m: f"v{numbers.setdefault(m[0], len(numbers))}", text)


@pytest.fixture(scope="module")
def cpu_text() -> str:
    return stack.compile(many, *arguments(), backend="mlir").run["tiled"].text


def values(text: str) -> list[np.ndarray]:
    func = parse(text)
    assert len(kernels(func)) > 4
    arrays = [a.numpy() for a in arguments()]
    return results_of(executable_from(func, "tiled", "mlir"), func, arrays)


def test_values_on_a_cpu(cpu_text: str) -> None:
    wanted = values(cpu_text)
    for names in (HOSTILE, HOSTILE[14:] + HOSTILE[:14]):
        for got, bits in zip(values(renamed(cpu_text, names)), wanted, strict=True):
            np.testing.assert_array_equal(got, bits)


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_code_on_a_gpu(backend: str) -> None:
    pytest.importorskip({"triton": "triton", "cuda": "cuda.core"}[backend])
    args = [a.to(torch.bfloat16) for a in arguments()]
    settings = Settings(backend=backend, machine="sm_90")
    text = inspect_target(ExampleCall("many", many, tuple(args), "torch"), settings)["tiled"].text

    def code(text: str) -> list[str]:
        func = parse(text)
        if backend == "triton":
            return [structure(print_triton(k, "kernel").text) for k in kernels(func)]
        lowered = Pipeline("distribute_gpu").run(func, target=load("sm_90")).func
        return [structure(print_cuda(k, "kernel").text) for k in kernels(lowered)]

    assert code(renamed(text, [])) == code(text)
    assert code(renamed(text, HOSTILE)) == code(text)


@pytest.mark.parametrize("more", [0, 3])
def test_a_stream_of_many_inputs(more: int) -> None:
    """Its inputs p0, p1, ... and its variables, one of which was called p8 as well."""
    g = torch.Generator().manual_seed(0)
    shapes = [(64, 32), (80, 32), (80,), (80, 32), (80,), (32, 80), (32,), (64, 32)]
    args = [torch.randn(s, generator=g) / 4 for s in shapes + [(64, 32)] * (1 + more)]

    def f(x, wk, bk, wv, bv, wo, bo, gate, *rest):
        linear = torch.nn.functional.linear
        hidden = torch.nn.functional.mish(linear(x, wk, bk)) * linear(x, wv, bv)
        return sum(rest, gate * linear(hidden, wo, bo))

    want = f(*(a.double() for a in args))
    torch.testing.assert_close(stack.compile(f, *args)(*args).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "heads, size, width, state", [(1, 16, 1, 1), (2, 17, 1, 5), (1, 15, 4, 1), (2, 1, 1, 1)]
)
def test_scans_of_narrow_heads(heads: int, size: int, width: int, state: int) -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [(heads, size, width), (heads, size), (heads,), (size, state), (size, state), (heads,)]
    x, dt, a, b, c, skip = (torch.randn(s, generator=g) for s in shapes)
    first = torch.randn(heads, state, width, generator=g)
    args = (x, dt.abs(), -a.abs(), b, c, skip, first)
    f = lambda *v: scan.ssd(*v, chunk=64)
    torch.compiler.reset()
    for got, want in zip(torch.compile(f, backend="stack")(*args), f(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size, width, columns", [(64, 7, 1), (40, 3, 1), (40, 7, 2)])
def test_a_product_of_one_column_in_a_stream(size: int, width: int, columns: int) -> None:
    """Its kernel packs rows and has no product, so the name does not come from a product."""
    g = torch.Generator().manual_seed(0)
    shapes = [
        (2, size, width),
        (2, size, width),
        (2, size, columns),
        (2, size),
        (2, width, columns),
    ]
    q, k, v, beta, first = (torch.randn(s, generator=g) * 0.3 for s in shapes)
    torch.compiler.reset()
    args = (q, k, v, beta.abs(), first)
    found = torch.compile(lambda *a: scan.delta(*a), backend="stack")(*args)
    for got, want in zip(found, scan.delta(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
