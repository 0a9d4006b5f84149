"""AMX on any CPU: the text of a kernel with functions in the place of instructions of tiles."""

from __future__ import annotations

import re
from dataclasses import replace

from stack.backends.mlir import jit
from stack.backends.mlir.printer import print_kernel
from stack.ir import Node
from stack.target import Cpu, as_cpu, load

NATIVE = replace(as_cpu(load("avx512")), arch="native")
TILES = replace(as_cpu(load("amx")), arch="native")  # what is emulated needs no instruction
_NAMES = "tilezero|tileloadd64|tilestored64|tdpbf16ps|tdpbssd"
_CALL = re.compile(rf'llvm\.call_intrinsic "llvm\.x86\.({_NAMES})"')
_STATE = re.compile(r'llvm\.call_intrinsic "llvm\.x86\.(ldtilecfg|tilerelease)".*')
_THREADS = "llvm.call @stack_parallel_for(%body, %table, %count, %grain)"
_ALONE = """%none = llvm.mlir.constant(0 : i64) : i64
  llvm.call @k_body(%table, %none, %count) : (!llvm.ptr, i64, i64) -> ()
  //"""

# eight registers of 16 rows of 64 bytes; configuration is taken as whole tiles
_FUNCTIONS = """
llvm.mlir.global internal @tmm() {addr_space = 0 : i32} : !llvm.array<2048 x i32> {
  %z = llvm.mlir.zero : !llvm.array<2048 x i32>
  llvm.return %z : !llvm.array<2048 x i32>
}
llvm.func internal @line(%t: i8, %row: i64) -> !llvm.ptr {
  %c = arith.constant 256 : i64
  %w = arith.constant 16 : i64
  %t64 = arith.extui %t : i8 to i64
  %a = arith.muli %t64, %c : i64
  %b = arith.muli %row, %w : i64
  %at = arith.addi %a, %b : i64
  %base = llvm.mlir.addressof @tmm : !llvm.ptr
  %p = llvm.getelementptr %base[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  llvm.return %p : !llvm.ptr
}
llvm.func internal @tilezero(%t: i8) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %end = arith.constant 16 : i64
  %z = arith.constant dense<0> : vector<16xi32>
  scf.for %r = %zero to %end step %one : i64 {
    %p = llvm.call @line(%t, %r) : (i8, i64) -> !llvm.ptr
    llvm.store %z, %p {alignment = 4 : i64} : vector<16xi32>, !llvm.ptr
  }
  llvm.return
}
llvm.func internal @tileloadd64(%t: i8, %from: !llvm.ptr, %step: i64) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %end = arith.constant 16 : i64
  scf.for %r = %zero to %end step %one : i64 {
    %p = llvm.call @line(%t, %r) : (i8, i64) -> !llvm.ptr
    %o = arith.muli %r, %step : i64
    %q = llvm.getelementptr %from[%o] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %x = llvm.load %q {alignment = 1 : i64} : !llvm.ptr -> vector<16xi32>
    llvm.store %x, %p {alignment = 4 : i64} : vector<16xi32>, !llvm.ptr
  }
  llvm.return
}
llvm.func internal @tilestored64(%t: i8, %to: !llvm.ptr, %step: i64) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %end = arith.constant 16 : i64
  scf.for %r = %zero to %end step %one : i64 {
    %p = llvm.call @line(%t, %r) : (i8, i64) -> !llvm.ptr
    %o = arith.muli %r, %step : i64
    %q = llvm.getelementptr %to[%o] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %x = llvm.load %p {alignment = 4 : i64} : !llvm.ptr -> vector<16xi32>
    llvm.store %x, %q {alignment = 1 : i64} : vector<16xi32>, !llvm.ptr
  }
  llvm.return
}
llvm.func internal @tdpbf16ps(%c: i8, %a: i8, %b: i8) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %end = arith.constant 16 : i64
  scf.for %m = %zero to %end step %one : i64 {
    %pc = llvm.call @line(%c, %m) : (i8, i64) -> !llvm.ptr
    %pa = llvm.call @line(%a, %m) : (i8, i64) -> !llvm.ptr
    scf.for %k = %zero to %end step %one : i64 {
      %pb = llvm.call @line(%b, %k) : (i8, i64) -> !llvm.ptr
      %pk = llvm.getelementptr %pa[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i32
      %word = llvm.load %pk : !llvm.ptr -> i32
      %words = vector.broadcast %word : i32 to vector<16xi32>
      %pairs = vector.bitcast %words : vector<16xi32> to vector<32xbf16>
      %line = llvm.load %pb {alignment = 4 : i64} : !llvm.ptr -> vector<32xbf16>
      %x = arith.extf %pairs : vector<32xbf16> to vector<32xf32>
      %y = arith.extf %line : vector<32xbf16> to vector<32xf32>
      %xy = arith.mulf %x, %y : vector<32xf32>
      %even = vector.shuffle %xy, %xy [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]
        : vector<32xf32>, vector<32xf32>
      %odd = vector.shuffle %xy, %xy [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31]
        : vector<32xf32>, vector<32xf32>
      %old = llvm.load %pc {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %first = arith.addf %old, %even : vector<16xf32>
      %both = arith.addf %first, %odd : vector<16xf32>
      llvm.store %both, %pc {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
    }
  }
  llvm.return
}
llvm.func internal @tdpbssd(%c: i8, %a: i8, %b: i8) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %end = arith.constant 16 : i64
  scf.for %m = %zero to %end step %one : i64 {
    %pc = llvm.call @line(%c, %m) : (i8, i64) -> !llvm.ptr
    %pa = llvm.call @line(%a, %m) : (i8, i64) -> !llvm.ptr
    scf.for %k = %zero to %end step %one : i64 {
      %pb = llvm.call @line(%b, %k) : (i8, i64) -> !llvm.ptr
      %pk = llvm.getelementptr %pa[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i32
      scf.for %n = %zero to %end step %one : i64 {
        %pn = llvm.getelementptr %pb[%n] : (!llvm.ptr, i64) -> !llvm.ptr, i32
        %po = llvm.getelementptr %pc[%n] : (!llvm.ptr, i64) -> !llvm.ptr, i32
        %x = llvm.load %pk {alignment = 4 : i64} : !llvm.ptr -> vector<4xi8>
        %y = llvm.load %pn {alignment = 4 : i64} : !llvm.ptr -> vector<4xi8>
        %x32 = arith.extsi %x : vector<4xi8> to vector<4xi32>
        %y32 = arith.extsi %y : vector<4xi8> to vector<4xi32>
        %xy = arith.muli %x32, %y32 : vector<4xi32>
        %sum = vector.reduction <add>, %xy : vector<4xi32> into i32
        %old = llvm.load %po {alignment = 4 : i64} : !llvm.ptr -> i32
        %new = arith.addi %old, %sum : i32
        llvm.store %new, %po {alignment = 4 : i64} : i32, !llvm.ptr
      }
    }
  }
  llvm.return
}
"""


def emulated(text: str) -> str:
    """The module of kernel `k`, by one thread: there is one set of registers."""
    text = _STATE.sub("", _CALL.sub(r"llvm.call @\1", text))
    return text.replace(_THREADS, _ALONE) + _FUNCTIONS


def compiled(kernel: Node, cpu: Cpu) -> tuple[str, jit.Kernel]:
    """The text of a kernel for `NATIVE` or `TILES`, and what it does."""
    text = print_kernel(kernel, "k", target=cpu)
    return text, jit.build(emulated(text) if cpu is TILES else text, ["k"])["k"]
