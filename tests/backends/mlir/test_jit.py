"""Text to native code, the object loader and the cache."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stack.backends.mlir import elf, jit, llvm
from stack.errors import BackendMissing
from stack.run.cache import Cache

pytest.importorskip("torch_mlir")
needs_loader = pytest.mark.skipif(not elf.IS_SUPPORTED, reason="objects are not loaded here")

SCALE = """
llvm.func @scale(%table: !llvm.ptr) {
  %slot = llvm.getelementptr %table[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %x = llvm.load %table : !llvm.ptr -> !llvm.ptr
  %n = llvm.load %slot : !llvm.ptr -> i64
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %two = arith.constant 2.5 : f32
  scf.for %i = %zero to %n step %one : i64 {
    %p = llvm.getelementptr %x[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %v = llvm.load %p : !llvm.ptr -> f32
    %w = arith.mulf %v, %two : f32
    llvm.store %w, %p : f32, !llvm.ptr
  }
  llvm.return
}
"""


def check_scale(library: dict[str, jit.NativeKernel]) -> None:
    x = np.arange(37, dtype=np.float32)
    library["scale"](x.ctypes.data, 37)
    np.testing.assert_array_equal(x, np.arange(37, dtype=np.float32) * 2.5)


def test_build_and_call() -> None:
    check_scale(jit.build(SCALE, ["scale"]))


def test_a_kept_table_can_change_in_place() -> None:
    kernel = jit.build(SCALE, ["scale"])["scale"]
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    slots = jit.table([x.ctypes.data, 4])
    kernel.raw(ctypes.addressof(slots))
    slots[0] = y.ctypes.data
    slots[1] = 2
    kernel.raw(ctypes.addressof(slots))
    assert x.tolist() == [2.5] * 4 and y.tolist() == [2.5, 2.5, 1, 1]


def test_the_engine_itself_runs_what_no_loader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "IS_SUPPORTED", False)
    check_scale(jit.build(SCALE, ["scale"]))


def test_stages_are_text() -> None:
    low = jit.lower(SCALE)
    assert "llvm.fmul" in low and "scf.for" not in low
    assert jit.lower(low) == low
    assembly = jit.assembly(SCALE)
    assert "<scale>:" in assembly or assembly.startswith("; no disassembly")


def test_values_stay_in_registers() -> None:
    """LLVM's lowest level is that of its passes: code is generated as at any other."""
    assembly = jit.assembly(SCALE)
    if assembly.startswith("; no disassembly"):
        pytest.skip("neither objdump nor llvm-objdump is installed")
    body = assembly.partition("<scale>:")[2].partition(">:\n")[0]
    assert "mul" in body
    assert not re.search(r"\(%[re][sb]p\)|\[(sp|x29)\b", body)


def test_no_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert jit.disassemble(b"abc").startswith("; no disassembly")


@pytest.mark.parametrize("text", ["func.func @f() {", SCALE.replace("%two :", "%tow :"), "?"])
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(jit.CompileError):
        jit.build(text, ["scale"])


def test_bad_text_shows_the_line() -> None:
    with pytest.raises(jit.CompileError, match=r"12: .*%tow"):
        jit.build(SCALE.replace("%v, %two", "%v, %tow"), ["scale"])


@needs_loader
def test_cache_hit_needs_no_mlir(tmp_path) -> None:
    jit.build(SCALE, ["scale"], Cache(tmp_path))
    code = f"""
import sys
from typing import Any
from stack.backends.mlir import jit
from stack.run.cache import Cache
import numpy as np
x = np.ones(3, np.float32)
jit.build({SCALE!r}, ["scale"], Cache({str(tmp_path)!r}))["scale"](x.ctypes.data, 3)
assert x.tolist() == [2.5] * 3
assert not any(name.split(".")[0] in ("mlir", "torch_mlir") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


ASKS = """
llvm.func @stack_parallel_for(!llvm.ptr, !llvm.ptr, i64, i64)
llvm.func internal @body(%table: !llvm.ptr, %lo: i64, %hi: i64) {
  llvm.return
}
llvm.func @empty(%table: !llvm.ptr) {
  %body = llvm.mlir.addressof @body : !llvm.ptr
  %one = arith.constant 1 : i64
  llvm.call @stack_parallel_for(%body, %table, %one, %one) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.return
}
"""


def test_no_ops_of_dialects_are_loaded_to_compile() -> None:
    """The pool is asked for where a module declares it, which its text tells."""
    code = f"""
import sys
from stack.backends.mlir import jit
jit.build({ASKS!r}, ["empty"])["empty"](0)
assert not [name for name in sys.modules if "_ops_gen" in name]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_loader
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "sound digest, no object"])
def test_a_bad_entry_is_a_miss(tmp_path, damage: str) -> None:
    cache = Cache(tmp_path)
    jit.build(SCALE, ["scale"], cache)
    path = cache.path(jit.key(SCALE))
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "swap":
        cache.put("0" * 64, b"another")
        path.write_bytes(cache.path("0" * 64).read_bytes())
    else:
        cache.put(jit.key(SCALE), b"\x7fELF but not really")
    check_scale(jit.build(SCALE, ["scale"], cache))
    assert path.read_bytes() == data


def test_a_cache_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    check_scale(jit.build(SCALE, ["scale"], Cache(tmp_path / "file" / "below")))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (jit.llvm, "version", lambda: "mlir 99.0"),
        (jit.platform, "machine", lambda: "riscv64"),
        (jit.llvm, "PIPELINE", "builtin.module()"),
        (jit, "OPT_LEVEL", 3),
        (jit, "FORMAT", "stack.mlir/0"),
    ],
)
def test_code_of_another_compiler_or_machine_is_a_miss(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
) -> None:
    here = jit.key(SCALE)
    monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(jit, "_host", jit._host.__wrapped__)
    assert jit.key(SCALE) != here


def test_a_cpu_that_is_not_told_of_has_its_objects_to_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jit, "Path", lambda _: tmp_path / "nothing")
    monkeypatch.setattr(jit, "_host", jit._host.__wrapped__)
    keys: set[str] = set()
    for name in ("a", "b"):
        monkeypatch.setattr(jit.platform, "node", lambda name=name: name)
        keys.add(jit.key(SCALE))
    assert len(keys) == 2


def test_keys_differ() -> None:
    assert jit.key("a") != jit.key("b") and len(jit.key("a")) == 64


@needs_loader
def test_the_loader_refuses_what_it_does_not_know() -> None:
    good = jit.compile_object(SCALE)
    assert "scale" in elf.load(good, jit.resolve).addresses
    with pytest.raises(elf.LoadError, match="not a relocatable"):
        elf.load(b"", jit.resolve)
    for size in range(64, len(good), 97):
        with pytest.raises(elf.LoadError):
            elf.load(good[:size], jit.resolve)
    outside = """
llvm.func @sinf(f32) -> f32
llvm.func @f(%table: !llvm.ptr) {
  %x = llvm.load %table : !llvm.ptr -> f32
  %y = llvm.call @sinf(%x) : (f32) -> f32
  llvm.store %y, %table : f32, !llvm.ptr
  llvm.return
}
"""
    with pytest.raises(elf.LoadError, match="sinf"):
        elf.load(jit.compile_object(outside), lambda _: None)


def test_writable_globals_keep_their_values() -> None:
    text = """
llvm.mlir.global internal @count(41 : i64) : i64
llvm.func @next(%table: !llvm.ptr) {
  %p = llvm.mlir.addressof @count : !llvm.ptr
  %old = llvm.load %p : !llvm.ptr -> i64
  %one = arith.constant 1 : i64
  %new = arith.addi %old, %one : i64
  llvm.store %new, %p : i64, !llvm.ptr
  llvm.store %new, %table : i64, !llvm.ptr
  llvm.return
}
"""
    kernel = jit.build(text, ["next"])["next"]
    slots = jit.table([0])
    kernel.raw(ctypes.addressof(slots))
    kernel.raw(ctypes.addressof(slots))
    assert slots[0] == 43


def test_missing_bindings_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "PACKAGES", ("no_such_mlir",))
    with pytest.raises(BackendMissing, match=r"\[mlir\]"):
        llvm.bindings.__wrapped__()
