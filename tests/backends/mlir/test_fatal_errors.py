"""Ops without code in LLVM, and text that does not parse, refuse a kernel; the process goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from executed import agrees, func_of
from kernel_cases import random_array

from stack.backends.mlir import compiler, jit
from stack.backends.mlir.elementwise import Unprintable
from stack.errors import StackError
from stack.ir import Builder, Node
from stack.run.compile import build, compile_func, find_backend
from stack.run.record import Run
from stack.target import as_cpu, load

pytest.importorskip("torch_mlir")

# an instruction that no function of this module may use: LLVM cannot select it
FEATURES = 'target_cpu = "x86-64", target_features = #llvm.target_features<["-avx512f"]>'
NO_CODE = f"""
llvm.func @kernel(%table: !llvm.ptr) attributes {{{FEATURES}}} {{
  %i = arith.constant dense<0> : vector<16xi32>
  %x = llvm.load %table : !llvm.ptr -> vector<16xf32>
  %y = llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"(%x, %i)
    : (vector<16xf32>, vector<16xi32>) -> vector<16xf32>
  llvm.store %y, %table : vector<16xf32>, !llvm.ptr
  llvm.return
}}
"""
SAYS = "LLVM: (Do not know how to|Cannot select)"
NOTHING = "llvm.func @kernel(%table: !llvm.ptr) {\n  llvm.return\n}\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: jit.build(NO_CODE, ["kernel"]),
        lambda: jit.compile_object(NO_CODE),
        lambda: jit.assembly(NO_CODE),
        lambda: ThreadPoolExecutor(1).submit(jit.build, NO_CODE, ["kernel"]).result(),
    ],
    ids=["build", "object", "assembly", "thread"],
)
def test_what_llvm_has_no_code_for_is_an_error(make: Any) -> None:
    with pytest.raises(jit.CompileError, match=SAYS) as raised:
        make()
    assert isinstance(raised.value, StackError)
    jit.build(NOTHING, ["kernel"])["kernel"]()


def test_kernels_that_share_a_module_with_one_without_code() -> None:
    """All of a module are left out; who asks for them compiles them one by one."""
    assert jit.build_all([NOTHING, NO_CODE], None) == {}
    assert jit.build_all([NOTHING], None).keys() == {NOTHING}


def test_a_process_ends_as_ever_after_a_fatal_error() -> None:
    code = f"""
from stack.backends.mlir import jit
for _ in range(3):
    try:
        jit.build({NO_CODE!r}, ["kernel"])
    except jit.CompileError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(SAYS, done.stdout)) == 3


def softplus_of_sums(b: Builder, x: Node) -> Node:
    total = b.reduce(b.exp(x), kind="sum", axes=(1,))
    return b.log(b.add(total, 1.0))


def without(word: str, error: Exception | None) -> Any:
    """A printer that has no text, or text without code, for what contains a word."""
    real = compiler.print_kernel

    def printed(*args: Any, **options: Any) -> str:
        text = real(*args, **options)
        if word not in text:
            return text
        if error is not None:
            raise error
        return NO_CODE

    return printed


@pytest.mark.parametrize("word", ["_exp_", "_log_", "vector.reduction", "llvm.func"])
@pytest.mark.parametrize("error", [None, Unprintable("no statement for it")], ids=["code", "text"])
def test_its_group_is_computed_in_another_way(
    word: str,
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    monkeypatch.setattr(compiler, "print_kernel", without(word, error))
    func = func_of(softplus_of_sums, [("f32", 5, 37)])
    run = Run()
    made = compile_func(func, "mlir", run=run, options={"cache": False})
    agrees(made, func, [random_array(("f32", 5, 37), rng)], 1e-5)
    assert "library" in {k.kind for k in made.kernels}
    assert re.search(SAYS if error is None else str(error), run["retreat"].notes[0])


def test_what_is_inspected_has_its_group_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump, which compiles nothing, says what runs."""
    monkeypatch.setattr(compiler, "print_kernel", without("_exp_", Unprintable("no statement")))
    func, run = func_of(softplus_of_sums, [("f32", 5, 37)]), Run()
    kernels, _ = build(
        func,
        find_backend("mlir"),
        run,
        lambda lowered: compiler.inspect_program(lowered, {"target": "avx2"}),
        target=as_cpu(load("avx2")),
    )
    assert "library" in {k.kind for k in kernels}
    assert "no statement" in run["retreat"].notes[0]
