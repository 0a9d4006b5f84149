"""Kernels read like the program: its variables, down to Triton, CUDA C++ and MLIR."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stack
import stack.plugins as plugins
from stack.backends.runtime.names import function_name
from stack.explore.lowering import Settings, inspect_target
from stack.explore.target import ExampleCall
from stack.ir import Func
from stack.ir.node import legal_name
from stack.rewrite.engine import Replacement, replace
from stack.run.backend import Kernel
from stack.run.record import Run

torch = pytest.importorskip("torch")
MACHINES = {"triton": "sm_90", "cuda": "sm_90", "mlir": "avx2"}
each = pytest.mark.parametrize("backend", MACHINES)


def lowered(backend: str, fn, *args) -> Run:
    if backend != "mlir":
        pytest.importorskip({"triton": "triton", "cuda": "cuda.core"}[backend])
    settings = Settings(backend=backend, machine=MACHINES[backend])
    return inspect_target(ExampleCall(fn.__name__, fn, args, "torch"), settings)


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def gated(x, gate, bias):
    scaled = x * 2.0
    shifted = scaled + bias
    gated_row = shifted * torch.sigmoid(gate)
    return gated_row / gated_row.sum(-1, keepdim=True)


ARGS = (torch.ones(64, 96), torch.ones(64, 96), torch.ones(96))


@each
def test_kernels_have_the_variables_of_the_program(backend: str):
    run = lowered(backend, gated, *ARGS)
    text = run[backend].text
    wanted = {"shifted", "gated_row", "x_ptr", "gate_ptr", "bias_ptr"}
    assert wanted <= words(text)
    # two variables of one value: the one whose line made it
    assert {"shifted", "gated_row"} <= words(run["tiled"].text)


def odd(x, y):
    float_, register, tile, first = x + 1.0, x + 2.0, x + 3.0, x + 4.0
    lo = x * float_
    k1 = lo * register
    t1 = k1 + tile
    i = t1 * first
    expf = torch.exp(i)
    α = expf * y
    __hidden = α + lo
    while_1 = __hidden - i
    float = while_1 * k1
    pid = float + expf
    requires = pid * t1
    isnan = requires.exp()
    return isnan.sum(-1)


@each
def test_names_give_way_to_the_words_of_a_language(backend: str):
    """The text for readers compiles too."""
    run = lowered(backend, odd, torch.ones(8, 64), torch.ones(8, 64))
    (kernel,) = run.kernels
    assert {"expf_1", "lo", "while_1"} & words(kernel.text)
    check_text(backend, kernel)


def check_text(backend: str, kernel: Kernel) -> None:
    """The text of a kernel for readers compiles."""
    if backend == "triton":
        from stack.backends.triton.build import function

        assert function(kernel.text, function_name(kernel.name))
    elif backend == "cuda":
        from stack.backends.cuda.nvrtc import compile_ptx

        assert "entry" in compile_ptx(kernel.text, "sm_90")
    else:
        from stack.backends.mlir import jit

        assert jit.compile_object(kernel.text)


def sines(x):
    return torch.sin(x) ** x


# of functions of C that kernels call, of others, words of a language, and what no text has
NAMES = ("sin", "pow", "malloc", "main", "float", "def", "tl", "a.b", "é")


@each
def test_a_kernel_may_have_any_name(backend: str):
    run = lowered(backend, sines, torch.ones(8, 64, dtype=torch.float64))
    stage = run["tiled" if backend == "triton" else "loop"].func
    (kernel,) = (n for n in stage.nodes if n.op == "kernel")
    found = plugins.load("stack.backends", backend)
    for name in NAMES:
        named = Replacement(kernel.rebuilt(attrs={**kernel.attrs, "name": name}))
        func = Func(stage.name, replace(stage.body, {kernel: named}), stage.level)
        kernels, _ = found.inspect(func, {"target": MACHINES[backend]})
        assert [k.name for k in kernels] == [legal_name(name)]
        check_text(backend, kernels[0])


def test_kernels_named_like_functions_of_c_are_saved(tmp_path: Path):
    x = torch.rand(9, dtype=torch.float64)
    for fn in (torch.sin, torch.erf, torch.lgamma, lambda x: x**x):
        compiled = stack.compile(fn, x)
        torch.testing.assert_close(compiled(x), fn(x))
        compiled.run.save(tmp_path / compiled.run.kernels[0].name)
        assert "llvm.func" in compiled.run["llvm"].text


def layers(x, w):
    first = torch.softmax(x @ w, -1)
    second = torch.softmax(first @ w, -1)
    third = torch.softmax(second @ w, -1)
    return third


@each
def test_names_are_not_part_of_a_kernel(backend: str):
    """Equal layers whose source has other names for their values are compiled once."""
    run = lowered(backend, layers, torch.ones(64, 96), torch.ones(96, 96))
    softmaxes = [k for k in run.kernels if not {"exp", "exp2"}.isdisjoint(k.ops)]
    assert len(softmaxes) == 3
    assert len({k.text for k in softmaxes}) <= 2  # one may have no product after it
