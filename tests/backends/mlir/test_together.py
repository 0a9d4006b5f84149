"""Kernels that are compiled in one module, and side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stack
from stack.backends.mlir import compiler, elf, jit, llvm
from stack.backends.runtime.names import function_name
from stack.run.cache import Cache

pytest.importorskip("torch_mlir")
needs_loader = pytest.mark.skipif(not elf.IS_SUPPORTED, reason="objects are not loaded here")

SHARED = """\
llvm.func internal @stack_square_f32x1(%x0: f32) -> f32 {
  %v0 = arith.mulf %x0, %x0 : f32
  llvm.return %v0 : f32
}
"""


def text_of(factor: float) -> str:
    """A kernel: a number, squared, times a factor."""
    return f"""\
llvm.func @kernel(%table: !llvm.ptr) {{
  %x = llvm.load %table : !llvm.ptr -> !llvm.ptr
  llvm.call @kernel_body(%x) : (!llvm.ptr) -> ()
  llvm.return
}}
llvm.func internal @kernel_body(%x: !llvm.ptr) {{
  %c = arith.constant {factor:e} : f32
  %v = llvm.load %x : !llvm.ptr -> f32
  %s = llvm.call @stack_square_f32x1(%v) : (f32) -> f32
  %w = arith.mulf %s, %c : f32
  llvm.store %w, %x : f32, !llvm.ptr
  llvm.return
}}
{SHARED}"""


TEXTS = [text_of(f) for f in (2.0, 3.0, 5.0)]


def check(kernels: dict[str, jit.NativeKernel], factors: Sequence[float] = (2.0, 3.0, 5.0)) -> None:
    assert set(kernels) == {text_of(f) for f in factors}
    for factor in factors:
        x = np.array([7], np.float32)
        kernels[text_of(factor)](x.ctypes.data)
        assert x[0] == 49 * factor


def count_modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills up with the modules that are lowered from here on."""
    seen: list[str] = []
    real = llvm.lowered

    def lowered(text: str, located: bool = False) -> Any:
        seen.append(text)
        return real(text, located)

    monkeypatch.setattr(llvm, "lowered", lowered)
    return seen


def test_kernels_share_a_module_and_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_modules(monkeypatch)
    check(jit.build_all(TEXTS, None))
    (module,) = seen
    assert module.count("@stack_square_f32x1(%x0") == 1
    assert module.count("llvm.func @kernel") == 3


def test_modules_are_as_many_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "LEAST_TEXT", 1)
    monkeypatch.setattr(jit.threads, "cores", lambda: 2)
    seen = count_modules(monkeypatch)
    check(jit.build_all(TEXTS, None))
    assert sorted(module.count("llvm.func @kernel") for module in seen) == [1, 2]


def test_nothing_to_compile() -> None:
    assert jit.build_all([], None) == {}


@needs_loader
def test_another_program_finds_a_kernel_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    cache = Cache(tmp_path)
    jit.build_all(TEXTS, cache)
    seen = count_modules(monkeypatch)
    check(jit.build_all(TEXTS[1:], cache), (3.0, 5.0))
    assert seen == []
    check(jit.build_all([TEXTS[2], text_of(11.0)], cache), (5.0, 11.0))
    (module,) = seen
    assert module.count("llvm.func @kernel") == 1


@needs_loader
@pytest.mark.parametrize("entry", ["a module", "no module"])
def test_a_lost_module_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, entry: str
) -> None:
    cache = Cache(tmp_path)
    jit.build_all(TEXTS, cache)
    place = cache.get(jit.key(jit.PLACE + TEXTS[0]))
    assert place is not None
    module = place.decode().split()[0]
    if entry == "a module":
        cache.put(module, b"\x7fELF but not really")
    else:
        cache.path(module).unlink()
    seen = count_modules(monkeypatch)
    check(jit.build_all(TEXTS, cache))
    assert len(seen) == 1


def test_a_module_that_is_refused_is_left_out() -> None:
    other = "llvm.func @kernel(%table: !llvm.ptr) {\n  no op\n}\n"
    assert jit.build_all([TEXTS[0], other], None) == {}


def test_what_functions_of_one_name_do_differently_is_refused() -> None:
    other = TEXTS[1].replace("arith.mulf %x0, %x0", "arith.addf %x0, %x0")
    assert jit.build_all([TEXTS[0], other], None) == {}


def test_threads_compile_side_by_side() -> None:
    factors = [float(f) for f in range(1, 9)]
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda f: jit.build_all([text_of(f)], None), factors)
        check({text: kernel for one in found for text, kernel in one.items()}, factors)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("llvm.func @kernel() {\n  no op\n}\n", "2:"),
        ("llvm.func @kernel(%x: f32) -> f32 {\n  llvm.return\n}\n", "llvm.return"),
    ],
)
def test_only_the_error_tells_why_a_text_is_refused(
    text: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(jit.CompileError, match=reason):
        jit.build(text, ["kernel"])
    assert capfd.readouterr() == ("", "")


def test_an_engine_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm.bindings().c, "mlirExecutionEngineCreate", lambda *_: None)
    with pytest.raises(jit.CompileError, match="ExecutionEngine"):
        jit.build(TEXTS[0], ["kernel"])


def test_what_people_read_is_made_when_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    real, readable = compiler.print_kernel, list[bool]()

    def print_kernel(*args: Any, **options: Any) -> str:
        readable.append(len(args) > 2 and args[2])
        return real(*args, **options)

    monkeypatch.setattr(compiler, "print_kernel", print_kernel)
    compiled = stack.compile(lambda x: torch.exp(x).sum(1), torch.ones(4, 8), cache=False)
    (kernel,) = compiled.run.kernels
    assert readable == [False] and "text" not in vars(compiled.graph.captured)
    assert f"llvm.func @{function_name(kernel.name)}(" in kernel.text
    assert readable == [False, True] and kernel.text is kernel.text
    assert "torch.ops.aten.exp" in compiled.run["captured"].text
    assert kernel == kernel and kernel.name in repr(kernel)
