"""Results of each primitive on a kernel, as text, and its refusals."""

from __future__ import annotations

import pytest
from counted import calls_of
from nest_cases import around, fused, inside, kernel_of, random_inputs, results, wrong

from stack.errors import UsageError
from stack.ir import parse, verify
from stack.ir.builder import constant
from stack.ir.types import F32
from stack.passes.nest.emit import emit
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.target import as_gpu, load

SUM = """func @f(%x: f32[3, 6]) -> (f32[3]) at tensor {
  %y = reduce(%x) {axes=[1], kind="sum"} : f32[3]
  return %y
}
"""
NEG = """func @f(%x: f32[3, 5]) -> (f32[3, 5]) at tensor {
  %y = neg(%x) : f32[3, 5]
  return %y
}
"""
TWO = """func @f(%x: f32[6]) -> (f32[], f32[]) at tensor {
  %f = fusion(%x) {kind="reduction", name="two"} : (f32[], f32[]) {(%p0: f32[6])
    %y = reduce(%p0) {axes=[0], kind="sum"} : f32[]
    %z = reduce(%p0) {axes=[0], kind="max"} : f32[]
    return %y, %z
  }
  %a = item(%f) {index=0} : f32[]
  %b = item(%f) {index=1} : f32[]
  return %a, %b
}
"""
SHARE = """func @f(%x: f32[6]) -> (f32[6]) at tensor {
  %t = reduce(%x) {axes=[0], kind="sum"} : f32[]
  %w = broadcast(%t) {axes=[]} : f32[6]
  %y = div(%x, %w) : f32[6]
  return %y
}
"""
TWICE = """func @f(%x: f32[2, 3]) -> (f32[2, 3]) at tensor {
  %e = exp(%x) : f32[2, 3]
  %t = reduce(%e) {axes=[1], kind="sum"} : f32[2]
  %w = broadcast(%t) {axes=[0]} : f32[2, 3]
  %y = div(%e, %w) : f32[2, 3]
  return %y
}
"""
MATMUL = """func @f(%x: f16[16, 20], %w: f16[32, 20]) -> (f16[16, 32]) at tensor {
  %f = fusion(%x, %w) {kind="gemm", name="product"} : f16[16, 32]
    {(%p0: f16[16, 20], %p1: f16[32, 20])
    %y = dot(%p0, %p1) {rule="m k, n k -> m n"} : f16[16, 32]
    return %y
  }
  return %f
}
"""
PRODUCT = """func @f(%x: f32[3, 4], %w: f32[4, 8]) -> (f32[3, 8]) at tensor {
  %f = fusion(%x, %w) {kind="gemm", name="dot_exp"} : f32[3, 8] {(%p0: f32[3, 4], %p1: f32[4, 8])
    %y = dot(%p0, %p1) {rule="m k, k n -> m n"} : f32[3, 8]
    %e = exp(%y) : f32[3, 8]
    return %e
  }
  return %f
}
"""
THIRD = """func @f(%x: f32[3, 5]) -> (f32[3, 5]) at tensor {
  %y = div(%x, 4.0:f32) : f32[3, 5]
  return %y
}
"""

FLAT = """func @f(%x: f32[3, COLUMNS]) -> (f32[SIZE]) at tensor {
  %f = fusion(%x) {kind="loop", name="flat"} : f32[SIZE] {(%p0: f32[3, COLUMNS])
    %e = neg(%p0) : f32[3, COLUMNS]
    %y = reshape(%e) : f32[SIZE]
    return %y
  }
  return %f
}
"""
ROWS_OF_8 = FLAT.replace("COLUMNS", "8").replace("SIZE", "24")
ROWS_OF_6 = FLAT.replace("COLUMNS", "6").replace("SIZE", "18")
# name: (program, steps before, the step, kernel before, kernel after); without "in global"
CASES: dict[str, tuple[str, str, str, str, str]] = {
    "split_mask": (
        NEG,
        "",
        "split j 4",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j.0 < 2: i32, %o0_3: f32[3, 5])
    %mul = mul(%j.0, 4:i32) : i32[]
    %loop_2 = loop(%o0_3) {kind="serial"} : f32[3, 5] {(%j.1 < 4: i32, %o0_2: f32[3, 5])
      %add = add(%mul, %j.1) : i32[]
      %lt = lt(%add, 5:i32) : bool[]
      %load = load(%p0, %i, %add, %lt, 0.0:f32) : f32[]
      %y = neg(%load) : f32[]
      %store = store(%o0_2, %y, %i, %add, %lt) : f32[3, 5]
      return %store
    }
    return %loop_2
  }
  return %loop_1
}
return %loop
""",
    ),
    "split_rows_of_whole_blocks": (
        ROWS_OF_8,
        "",
        "split i 4; vectorize i.1",
        """
%loop = loop(%o0) {kind="serial"} : f32[24] {(%i < 24: i32, %o0_1: f32[24])
  %div = div(%i, 8:i32) : i32[]
  %rem = rem(%i, 8:i32) : i32[]
  %load = load(%p0, %div, %rem) : f32[]
  %e = neg(%load) : f32[]
  %store = store(%o0_1, %e, %i) : f32[24]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[24] {(%i.0 < 6: i32, %o0_2: f32[24])
  %mul = mul(%i.0, 4:i32) : i32[]
  %div = div(%mul, 8:i32) : i32[]
  %rem = rem(%mul, 8:i32) : i32[]
  %load = load(%p0, %div, %rem) : f32<4>
  %e = neg(%load) : f32<4>
  %store = store(%o0_2, %e, %mul) : f32[24]
  return %store
}
return %loop
""",
    ),
    "split_rows_of_other_lengths": (
        ROWS_OF_6,
        "",
        "split i 4; vectorize i.1",
        """
%loop = loop(%o0) {kind="serial"} : f32[18] {(%i < 18: i32, %o0_1: f32[18])
  %div = div(%i, 6:i32) : i32[]
  %rem = rem(%i, 6:i32) : i32[]
  %load = load(%p0, %div, %rem) : f32[]
  %e = neg(%load) : f32[]
  %store = store(%o0_1, %e, %i) : f32[18]
  return %store
}
return %loop
""",
        """
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[18] {(%i.0 < 5: i32, %o0_2: f32[18])
  %mul = mul(%i.0, 4:i32) : i32[]
  %add = add(%mul, %iota) : i32<4>
  %div = div(%add, 6:i32) : i32<4>
  %rem = rem(%add, 6:i32) : i32<4>
  %lt = lt(%add, 18:i32) : bool<4>
  %load = load(%p0, %div, %rem, %lt, 0.0:f32) : f32<4>
  %e = neg(%load) : f32<4>
  %store = store(%o0_2, %e, %mul) {clip=true} : f32[18]
  return %store
}
return %loop
""",
    ),
    "split_peel": (
        SUM,
        "",
        "split r 4 tail=peel",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %add = add(%acc, %load) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(0.0:f32) {kind="serial"} : f32[] {(%r.1 < 4: i32, %acc: f32[])
    %load = load(%p0, %i, %r.1) : f32[]
    %add = add(%acc, %load) : f32[]
    return %add
  }
  %y = loop(%loop_1) {kind="serial"} : f32[] {(%r.1 < 2: i32, %acc: f32[])
    %add_1 = add(%r.1, 4:i32) : i32[]
    %load_1 = load(%p0, %i, %add_1) : f32[]
    %add_2 = add(%acc, %load_1) : f32[]
    return %add_2
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
    ),
    "split_overlap": (
        NEG,
        "",
        "split j 4 tail=overlap",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial", overlap=true} : f32[3, 5] {(%j.0 < 2: i32, %o0_3: f32[3, 5])
    %mul = mul(%j.0, 4:i32) : i32[]
    %min = min(%mul, 1:i32) : i32[]
    %loop_2 = loop(%o0_3) {kind="serial"} : f32[3, 5] {(%j.1 < 4: i32, %o0_2: f32[3, 5])
      %add = add(%min, %j.1) : i32[]
      %load = load(%p0, %i, %add) : f32[]
      %y = neg(%load) : f32[]
      %store = store(%o0_2, %y, %i, %add) : f32[3, 5]
      return %store
    }
    return %loop_2
  }
  return %loop_1
}
return %loop
""",
    ),
    "vectorize": (
        SUM,
        "",
        "vectorize r",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %add = add(%acc, %load) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %load = load(%p0, %i, 0:i32) : f32<6>
  %y = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
    ),
    "vectorize_masked": (
        NEG,
        "split j 8",
        "vectorize j.1",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j.1 < 8: i32, %o0_2: f32[3, 5])
    %lt = lt(%j.1, 5:i32) : bool[]
    %load = load(%p0, %i, %j.1, %lt, 0.0:f32) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j.1, %lt) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) {clip=true} : f32<8>
  %y = neg(%load) : f32<8>
  %store = store(%o0_1, %y, %i, 0:i32) {clip=true} : f32[3, 5]
  return %store
}
return %loop
""",
    ),
    "rfactor": (
        SUM,
        "split r 3; vectorize r.1",
        "rfactor r.0",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 2: i32, %acc_1: f32[])
    %mul = mul(%r.0, 3:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<3>
    %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
    %add = add(%acc_1, %reduce) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
        """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<3>
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(%broadcast) {kind="serial"} : f32<3> {(%r.0 < 2: i32, %lanes: f32<3>)
    %mul = mul(%r.0, 3:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<3>
    %add = add(%lanes, %load) : f32<3>
    return %add
  }
  %y = reduce(%loop_1) {axes=[0], kind="sum"} : f32[]
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
    ),
    "fuse": (
        NEG,
        "",
        "fuse i j",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 15: i32, %o0_2: f32[3, 5])
  %div = div(%i, 5:i32) : i32[]
  %rem = rem(%i, 5:i32) : i32[]
  %load = load(%p0, %div, %rem) : f32[]
  %y = neg(%load) : f32[]
  %store = store(%o0_2, %y, %div, %rem) : f32[3, 5]
  return %store
}
return %loop
""",
    ),
    "reorder": (
        NEG,
        "",
        "reorder i j",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%j < 5: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
    ),
    "stage": (
        TWICE,
        "",
        "stage e local",
        """
%loop = loop(%o0) {kind="serial"} : f32[2, 3] {(%i < 2: i32, %o0_1: f32[2, 3])
  %t = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 3: i32, %acc: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %e = exp(%load) : f32[]
    %add = add(%acc, %e) : f32[]
    return %add
  }
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[2, 3] {(%r < 3: i32, %o0_2: f32[2, 3])
    %load = load(%p0, %i, %r) : f32[]
    %e = exp(%load) : f32[]
    %y = div(%e, %t) : f32[]
    %store = store(%o0_2, %y, %i, %r) : f32[2, 3]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%alloc = alloc() {name="keep"} : f32[3] in local
%loop = loop(%o0) {kind="serial"} : f32[2, 3] {(%i < 2: i32, %o0_1: f32[2, 3])
  %loop_1 = loop(0.0:f32, %alloc) {kind="serial"} : (f32[], f32[3] in local)
  {(%r < 3: i32, %acc: f32[], %keep_1: f32[3] in local)
    %load = load(%p0, %i, %r) : f32[]
    %e = exp(%load) : f32[]
    %add = add(%acc, %e) : f32[]
    %store = store(%keep_1, %e, %r) : f32[3] in local
    return %add, %store
  }
  %item = item(%loop_1) {index=1} : f32[3] in local
  %t = item(%loop_1) {index=0} : f32[]
  %loop_2 = loop(%o0_1) {kind="serial"} : f32[2, 3] {(%r < 3: i32, %o0_2: f32[2, 3])
    %e_1 = load(%item, %r) : f32[]
    %y = div(%e_1, %t) : f32[]
    %store_1 = store(%o0_2, %y, %i, %r) : f32[2, 3]
    return %store_1
  }
  return %loop_2
}
return %loop
""",
    ),
    "fission": (
        PRODUCT,
        "vectorize j",
        "fission i k",
        """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%loop = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y = loop(%broadcast) {kind="serial"} : f32<8> {(%k < 4: i32, %acc: f32<8>)
    %load = load(%p0, %i, %k) : f32[]
    %load_1 = load(%p1, %k, 0:i32) : f32<8>
    %mul = mul(%load, %load_1) : f32<8>
    %add = add(%acc, %mul) : f32<8>
    return %add
  }
  %e = exp(%y) : f32<8>
  %store = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store
}
return %loop
""",
        """
%alloc = alloc() {name="sums"} : f32[3, 8] in local
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%loop = loop(%alloc) {kind="serial"} : f32[3, 8] in local
  {(%i < 3: i32, %sums_1: f32[3, 8] in local)
  %y = loop(%broadcast) {kind="serial"} : f32<8> {(%k < 4: i32, %acc: f32<8>)
    %load = load(%p0, %i, %k) : f32[]
    %load_1 = load(%p1, %k, 0:i32) : f32<8>
    %mul = mul(%load, %load_1) : f32<8>
    %add = add(%acc, %mul) : f32<8>
    return %add
  }
  %store = store(%sums_1, %y, %i, 0:i32) : f32[3, 8] in local
  return %store
}
%loop_1 = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y_1 = load(%loop, %i, 0:i32) : f32<8>
  %e = exp(%y_1) : f32<8>
  %store_1 = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store_1
}
return %loop_1
""",
    ),
    "microkernel": (
        PRODUCT,
        "vectorize j; fission i k",
        "microkernel i",
        """
%alloc = alloc() {name="sums"} : f32[3, 8] in local
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%loop = loop(%alloc) {kind="serial"} : f32[3, 8] in local
  {(%i < 3: i32, %sums_1: f32[3, 8] in local)
  %y = loop(%broadcast) {kind="serial"} : f32<8> {(%k < 4: i32, %acc: f32<8>)
    %load = load(%p0, %i, %k) : f32[]
    %load_1 = load(%p1, %k, 0:i32) : f32<8>
    %mul = mul(%load, %load_1) : f32<8>
    %add = add(%acc, %mul) : f32<8>
    return %add
  }
  %store = store(%sums_1, %y, %i, 0:i32) : f32[3, 8] in local
  return %store
}
%loop_1 = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y_1 = load(%loop, %i, 0:i32) : f32<8>
  %e = exp(%y_1) : f32<8>
  %store_1 = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store_1
}
return %loop_1
""",
        """
%alloc = alloc() {name="sums"} : f32[3, 8] in local
%load = load(%p0, 0:i32, 0:i32) : f32<3x4>
%load_1 = load(%p1, 0:i32, 0:i32) : f32<4x8>
%dot = dot(%load, %load_1) {rule="m k, k n -> m n"} : f32<3x8>
%store = store(%alloc, %dot, 0:i32, 0:i32) : f32[3, 8] in local
%loop = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y_1 = load(%store, %i, 0:i32) : f32<8>
  %e = exp(%y_1) : f32<8>
  %store_1 = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store_1
}
return %loop

""",
    ),
    "tensorize": (
        MATMUL,
        "split k 16; vectorize k.1; vectorize j; vectorize i",
        "tensorize",
        """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<16x32>
%y = loop(%broadcast) {kind="serial"} : f32<16x32> {(%k.0 < 2: i32, %acc_1: f32<16x32>)
  %mul = mul(%k.0, 16:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) {clip=true} : f16<16x16>
  %cast_1 = cast(%load) : f32<16x16>
  %broadcast_1 = broadcast(%cast_1) {axes=[0, 2]} : f32<16x32x16>
  %load_1 = load(%p1, 0:i32, %mul) {clip=true} : f16<32x16>
  %cast_2 = cast(%load_1) : f32<32x16>
  %broadcast_2 = broadcast(%cast_2) {axes=[1, 2]} : f32<16x32x16>
  %mul_1 = mul(%broadcast_1, %broadcast_2) : f32<16x32x16>
  %reduce = reduce(%mul_1) {axes=[2], kind="sum"} : f32<16x32>
  %add = add(%acc_1, %reduce) : f32<16x32>
  return %add
}
%cast = cast(%y) : f16<16x32>
%store = store(%o0, %cast, 0:i32, 0:i32) : f16[16, 32]
return %store
""",
        """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<16x32>
%y = loop(%broadcast) {kind="serial", staged=true} : f32<16x32> {(%k.0 < 2: i32, %acc_1: f32<16x32>)
  %mul = mul(%k.0, 16:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) {clip=true} : f16<16x16>
  %load_1 = load(%p1, 0:i32, %mul) {clip=true} : f16<32x16>
  %dot = dot(%load, %load_1) {rule="m k, n k -> m n"} : f32<16x32>
  %add = add(%acc_1, %dot) : f32<16x32>
  return %add
}
%cast = cast(%y) : f16<16x32>
%store = store(%o0, %cast, 0:i32, 0:i32) : f16[16, 32]
return %store
""",
    ),
    "peel": (
        NEG,
        "vectorize j",
        "peel i 1",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 2: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
%loop_1 = loop(%loop) {kind="serial"} : f32[3, 5] {(%i.last < 1: i32, %o0_1: f32[3, 5])
  %add = add(%i.last, 2:i32) : i32[]
  %load_1 = load(%p0, %add, 0:i32) : f32<5>
  %y_1 = neg(%load_1) : f32<5>
  %store_1 = store(%o0_1, %y_1, %add, 0:i32) : f32[3, 5]
  return %store_1
}
return %loop_1
""",
    ),
    "unroll": (
        SUM,
        "split r 2; vectorize r.1",
        "unroll r.0",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
    %mul = mul(%r.0, 2:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<2>
    %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
    %add = add(%acc_1, %reduce) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %load = load(%p0, %i, 0:i32) : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(0.0:f32, %reduce) : f32[]
  %load_1 = load(%p0, %i, 2:i32) : f32<2>
  %reduce_1 = reduce(%load_1) {axes=[0], kind="sum"} : f32[]
  %add_1 = add(%add, %reduce_1) : f32[]
  %load_2 = load(%p0, %i, 4:i32) : f32<2>
  %reduce_2 = reduce(%load_2) {axes=[0], kind="sum"} : f32[]
  %y = add(%add_1, %reduce_2) : f32[]
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
    ),
    "compute_with": (
        TWO,
        "",
        "compute_with r",
        """
%y = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc: f32[])
  %load = load(%p0, %r) : f32[]
  %add = add(%acc, %load) : f32[]
  return %add
}
%store = store(%o0, %y) : f32[]
%z = loop(-inf:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc_1: f32[])
  %load = load(%p0, %r) : f32[]
  %max = max(%acc_1, %load) : f32[]
  return %max
}
%store_1 = store(%o1, %z) : f32[]
return %store, %store_1
""",
        """
%loop = loop(0.0:f32, -inf:f32) {kind="serial"} : (f32[], f32[])
  {(%r < 6: i32, %acc_2: f32[], %acc_3: f32[])
  %load = load(%p0, %r) : f32[]
  %add = add(%acc_2, %load) : f32[]
  %max = max(%acc_3, %load) : f32[]
  return %add, %max
}
%y = item(%loop) {index=0} : f32[]
%store = store(%o0, %y) : f32[]
%z = item(%loop) {index=1} : f32[]
%store_1 = store(%o1, %z) : f32[]
return %store, %store_1
""",
    ),
    "hold": (
        SHARE,
        "split r 2; vectorize r.1",
        "hold r.0 1",
        """
%t = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(%acc_1, %reduce) : f32[]
  return %add
}
%loop = loop(%o0) {kind="serial"} : f32[6] {(%r.0 < 3: i32, %o0_2: f32[6])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %y = div(%load, %t) : f32<2>
  %store = store(%o0_2, %y, %mul) : f32[6]
  return %store
}
return %loop
""",
        """
%loop = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 2: i32, %acc_1: f32[])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(%acc_1, %reduce) : f32[]
  return %add
}
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<2>
%loop_1 = loop(2:i32, 3:i32, %loop, %broadcast) {kind="serial", limited=true} : (f32[], f32<2>)
  {(%r.0 < 3: i32, %acc_1: f32[], %held: f32<2>)
  %mul_1 = mul(%r.0, 2:i32) : i32[]
  %load_1 = load(%p0, %mul_1) : f32<2>
  %reduce_1 = reduce(%load_1) {axes=[0], kind="sum"} : f32[]
  %add_1 = add(%acc_1, %reduce_1) : f32[]
  return %add_1, %load_1
}
%item = item(%loop_1) {index=1} : f32<2>
%t = item(%loop_1) {index=0} : f32[]
%y = div(%item, %t) : f32<2>
%store = store(%o0, %y, 4:i32) : f32[6]
%loop_2 = loop(%store) {kind="serial"} : f32[6] {(%r.0 < 2: i32, %o0_2: f32[6])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %y_1 = div(%load, %t) : f32<2>
  %store_1 = store(%o0_2, %y_1, %mul) : f32[6]
  return %store_1
}
return %loop_2
""",
    ),
    "pipeline": (
        SUM,
        "split r 2; vectorize r.1",
        "pipeline r.0 3",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
    %mul = mul(%r.0, 2:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<2>
    %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
    %add = add(%acc_1, %reduce) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %y = loop(0.0:f32) {ahead=3, kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
    %mul = mul(%r.0, 2:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<2>
    %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
    %add = add(%acc_1, %reduce) : f32[]
    return %add
  }
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
""",
    ),
    "bind": (
        NEG,
        "vectorize j",
        "bind i grid",
        """
%loop = loop(%o0) {kind="serial"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
    ),
    "rewrite_reciprocals": (
        THIRD,
        "vectorize j; bind i grid",
        "rewrite reciprocals",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = div(%load, 4.0:f32) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = mul(%load, 0.25:f32) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
    ),
    "rasterize": (
        NEG,
        "bind i grid; bind j grid",
        "rasterize j 2",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {kind="grid"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %loop_1 = loop(%o0_1) {group=2, kind="grid"} : f32[3, 5] {(%j < 5: i32, %o0_2: f32[3, 5])
    %load = load(%p0, %i, %j) : f32[]
    %y = neg(%load) : f32[]
    %store = store(%o0_2, %y, %i, %j) : f32[3, 5]
    return %store
  }
  return %loop_1
}
return %loop
""",
    ),
    "evict": (
        NEG,
        "vectorize j; bind i grid",
        "evict o0 first",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) : f32[3, 5]
  return %store
}
return %loop
""",
        """
%loop = loop(%o0) {kind="grid"} : f32[3, 5] {(%i < 3: i32, %o0_1: f32[3, 5])
  %load = load(%p0, %i, 0:i32) : f32<5>
  %y = neg(%load) : f32<5>
  %store = store(%o0_1, %y, %i, 0:i32) {evict="first"} : f32[3, 5]
  return %store
}
return %loop
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_expected(name: str) -> None:
    program, first, step, before, expected = CASES[name]
    kernel = kernel_of(program, first)
    made = run_steps(kernel, parse_steps(step))
    for have, want in ((kernel, before), (made, expected)):
        assert inside(have) == want.strip().replace("\n  {(", " {(")
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-3)


def test_launch() -> None:
    made = kernel_of(NEG, "vectorize j; bind i grid; launch 4 stages=3")
    assert (made.attrs["warps"], made.attrs["stages"]) == (4, 3)


def test_peeled_loops_have_axes_of_their_own() -> None:
    made = kernel_of(NEG, "peel i 1; split j 4; split j.last 2")
    assert list(axes(made)) == ["i", "i.last", "j.0", "j.last.0", "j.1", "j.last.1"]
    arrays = random_inputs(around(made))
    assert not wrong(made, arrays, results(around(kernel_of(NEG)), arrays), 1e-6)


TILES = "split k 16; vectorize k.1; vectorize j; vectorize i"


def test_threads_are_told_by_attributes_of_the_kernel() -> None:
    made = kernel_of(MATMUL, f"{TILES}; tensorize; threads 4 2 operands=global")
    assert made.attrs["threads"] == (4, 2)
    assert made.attrs["operands"] == "global"


def test_a_pipeline_through_shared_memory() -> None:
    made = kernel_of(MATMUL, "split k 16; vectorize k.1; vectorize j; pipeline k.0 2 shared")
    (loop,) = (n for n in made.blocks[0].all_nodes if n.attrs.get("ahead"))
    assert (loop.attrs["ahead"], loop.attrs["staged"]) == (2, True)


def test_a_loop_of_products_is_staged() -> None:
    """Operands of matrix instructions go through shared memory; sums of rows do not."""
    loops = [n for n in kernel_of(MATMUL, f"{TILES}; tensorize").blocks[0].all_nodes if n.blocks]
    assert [n.attrs.get("staged") for n in loops] == [True]
    loops = [n for n in kernel_of(SUM, "split r 2; vectorize r.1").blocks[0].all_nodes if n.blocks]
    assert not any("staged" in n.attrs for n in loops)


RUNNING = """func @f(%x: f32[6]) -> (f32[6]) at tensor {
  %f = fusion(%x) {kind="loop", name="running"} : f32[6] {(%p0: f32[6])
    %y = scan(%p0) {axis=0, kind="sum", reverse=false} : f32[6]
    return %y
  }
  return %f
}
"""
LOOKUP = """func @f(%x: f32[6], %i: i32[4], %u: f32[4]) -> (f32[6]) at tensor {
  %f = fusion(%x, %i, %u) {kind="loop", name="update"} : f32[6]
    {(%p0: f32[6], %p1: i32[4], %p2: f32[4])
    %y = scatter(%p0, %p1, %p2) {kind="add", rule="a!, b, b -> a!"} : f32[6]
    return %y
  }
  return %f
}
"""
# program, steps, the step that is refused, and what its message says
REFUSED = {
    "no such axis": (
        NEG,
        "split q 4",
        1,
        "there is no loop over 'q'; the axes are: i of 3, j of 5",
    ),
    "split by a huge number": (
        NEG,
        "split j 99999999999",
        1,
        "axis j: masked blocks of 99999999999 are 99999999999 iterations for 5, and indices end at",
    ),
    "split by zero": (NEG, "split j 4; split i 0", 2, "the block size is at least 1, not 0"),
    "no memory of its own": (
        TWICE,
        "stage e local",
        1,
        "stage is for CPUs",
    ),
    "no such tail": (NEG, "split j 4 tail=drop", 1, "the tail is one of mask, front, peel"),
    "a sum in overlapping blocks": (
        SUM,
        "split r 4 tail=overlap",
        1,
        "the loop over r carries a value: its iterations cannot be repeated",
    ),
    "an update in overlapping blocks": (
        LOOKUP,
        "split r 3 tail=overlap",
        1,
        "the loop over r reads what it stores: its iterations cannot be repeated",
    ),
    "rows and blocks that overlap": (
        NEG,
        "split j 4 tail=overlap; fuse i j.0; bind i grid",
        3,
        "two iterations of the loop over i may store to one element",
    ),
    "no local memory": (PRODUCT, "fission i k", 1, "fission is for CPUs"),
    "no panels": (PRODUCT, "microkernel i", 1, "microkernel is for CPUs"),
    "split twice": (NEG, "split j 2; split j 2", 2, "there is no loop over 'j'"),
    "bound twice": (NEG, "bind i grid; bind i grid", 2, "axis i is bound to grid already"),
    "split what is bound": (NEG, "bind i grid; split i 2", 2, "bound to grid: split it before"),
    "bound inside": (
        NEG,
        "bind j grid",
        1,
        "inside of the serial loop over i: bind that one before",
    ),
    "bound to nothing": (
        NEG,
        "bind i lane",
        1,
        "axis i: it can be bound to grid or cores, not to 'lane'",
    ),
    "a total in programs": (SHARE, "bind r grid", 1, "carries a value from one iteration"),
    "a carried dependence": (RUNNING, "bind i grid", 1, "carries a value"),
    "a running total": (RUNNING, "rfactor i", 1, "carries acc, and does more than add to it"),
    "colliding places": (LOOKUP, "vectorize r", 1, "reads what another one stores"),
    "more than a nest": (SUM, "fuse i r", 1, "the body of i is more than a loop over r"),
    "no nest": (NEG, "reorder j i", 1, "not perfectly nested: the body of j"),
    "too many iterations": (NEG, "peel i 3", 1, "cannot peel 3 of 3 iterations"),
    "one loop": (
        SUM,
        "split r 2; vectorize r.1; hold r.0 1",
        3,
        "needs a loop that reduces, and another one after it",
    ),
    "no tile is added": (SUM, "rfactor r", 1, "adds the reduction of a tile"),
    "nothing side by side": (SUM, "compute_with r", 1, "no two serial loops over r in one block"),
    "nothing is read": (NEG, "pipeline i 2", 1, "no loop over i loads a tile"),
    "in flight": (
        SUM,
        "split r 2; vectorize r.1; pipeline r.0 0",
        3,
        "at least 1 iteration is in flight",
    ),
    "no product": (SUM, "tensorize", 1, "no matrix product: no sum of products of two tiles"),
    "no such precision": (MATMUL, "tensorize bf16", 1, "precision 'bf16' is not tf32"),
    "one tile too few": (
        MATMUL,
        "split k 16; vectorize k.1; vectorize j; tensorize",
        4,
        "no matrix product",
    ),
    "a small product": (
        MATMUL,
        "split k 8; vectorize k.1; vectorize j; vectorize i; tensorize",
        5,
        "a product of 16 x 32 x 8: instructions take 16 or more along each axis",
    ),
    "five lanes": (NEG, "vectorize j", 1, "axis j: 5 lanes; tiles of a GPU have a power of two"),
    "six lanes of a sum": (SUM, "vectorize r", 1, "axis r: 6 lanes"),
    "three lanes of a block": (SUM, "split r 3; vectorize r.1", 2, "axis r.1: 3 lanes"),
    "three lanes beside a rest of two": (NEG, "peel j 2; vectorize j", 2, "axis j: 3 lanes"),
    "six lanes that run": (RUNNING, "vectorize i", 1, "axis i: 6 lanes"),
    "no such rule": (NEG, "rewrite logs", 1, "no rule 'logs'"),
    "no such memory": (NEG, "evict p9 first", 1, "no memory 'p9'; there are: p0, o0"),
    "rasterized too early": (NEG, "rasterize j 8", 1, "axis j is not bound to the grid"),
    "one loop of programs": (
        SUM,
        "bind i grid; rasterize i 8",
        2,
        "the loop over i is not directly inside of another one",
    ),
    "no rows": (NEG, "bind i grid; bind j grid; rasterize j 0", 3, "at least 1 row, not 0"),
    "threads without products": (NEG, "threads 4 4", 1, "there is no matrix product"),
    "threads without sums": (MATMUL, "threads", 1, "a thread has at least 1 row or 1 column"),
    "no such lanes": (MATMUL, "threads 1 1 lanes=k", 1, "lanes are along rows or columns"),
    "through registers": (
        SUM,
        "split r 2; vectorize r.1; pipeline r.0 2 registers",
        3,
        "tiles go through shared, not through 'registers'",
    ),
    "too much for shared memory": (
        SUM,
        "split r 2; vectorize r.1; pipeline r.0 100000 shared",
        3,
        "100000 iterations load 800000 bytes, and shared memory has room for",
    ),
    "too many stages": (MATMUL, f"{TILES}; tensorize; launch 4 stages=9999", 6, "stages=9999"),
    "peeled twice": (NEG, "peel i 1; peel i 1", 2, "axis i.last exists already"),
    "products in registers": (
        MATMUL.replace("20]", "1024]"),
        "vectorize k; vectorize j; vectorize i; launch 4",
        4,
        "a tile of 524288 elements, and a program has 65536 registers",
    ),
    "warps": (NEG, "launch 3", 1, "3 warps: the number is not a power of two"),
    "a rest that no program runs": (
        NEG,
        "peel i 1; bind i grid; launch 1",
        3,
        "axis i.last is not bound to the grid, and i beside it is",
    ),
    "a first part that no program runs": (
        NEG,
        "peel i 1; bind i.last grid; launch 1",
        3,
        "axis i is not bound to the grid, and i.last beside it is",
    ),
    "a rest inside of programs": (
        NEG,
        "bind i grid; peel j 1; bind j grid; launch 1",
        4,
        "axis j.last is not bound to the grid, and j beside it is",
    ),
    "threads": (NEG, "launch 64", 1, "2048 threads, and a program has at most 1024"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_legal_is_refused(name: str) -> None:
    program, text, number, message = REFUSED[name]
    nest, steps = emit(fused(program)), parse_steps(text)
    with pytest.raises(IllegalStep) as found:
        run_steps(nest, steps, as_gpu(load("sm_90")))
    assert (found.value.number, str(found.value.step)) == (number, str(steps[number - 1]))
    assert f"step {number}, `{steps[number - 1]}`" in str(found.value)
    assert message in str(found.value)


NOT_APART = {
    "fission i q": "the body of i has no loop over q",
    "bind i cores; fission i k": "axis i is bound to cores",
    "split j 4; fission i j.0": "the loop over j.0 carries memory, not values",
    "split k 2; fission k.0 k.1": "the loop over k.1 depends on acc_1, which is carried",
}


@pytest.mark.parametrize("text", NOT_APART)
def test_loops_that_stay_one(text: str) -> None:
    with pytest.raises(IllegalStep) as found:
        kernel_of(PRODUCT, text)
    assert NOT_APART[text] in str(found.value)


@pytest.mark.parametrize("to", ["cores", "grid"])
def test_blocks_that_overlap_are_independent(to: str) -> None:
    kernel = kernel_of(NEG)
    steps = f"split j 4 tail=overlap; split i 2 tail=overlap; bind i.0 {to}; reorder i.1 j.0"
    made = run_steps(kernel, parse_steps(f"{steps}; bind j.0 {to}"))
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-6)


def test_blocks_of_vectors_that_overlap_are_independent() -> None:
    steps = parse_steps("split j 4 tail=overlap; vectorize j.1; bind i grid; bind j.0 grid")
    outer = run_steps(emit(fused(NEG)), steps).blocks[0].results[0]
    assert outer.blocks[0].results[0].attrs == {"kind": "grid", "overlap": True}


NOT_KEPT = {
    "stage e shared": "values are staged in local memory, not in 'shared'",
    "stage q local": "no value is called 'q'",
    "stage t local": "no two loops of one block compute t",
    "stage e local; stage e local": "no two loops of one block compute e",
    "vectorize r; stage e local": "no two loops of one block compute e",
    "stage e local; unroll i": "all iterations of the loop over i use the same local memory",
    "stage e local; vectorize i": "two iterations of the loop over i may store to one element",
}


@pytest.mark.parametrize("text", NOT_KEPT)
def test_what_no_memory_keeps(text: str) -> None:
    with pytest.raises(IllegalStep) as found:
        kernel_of(TWICE, text)
    assert NOT_KEPT[text] in str(found.value)


def test_what_is_computed_is_zero_past_the_end_of_a_sum() -> None:
    text = MATMUL.replace("%y = dot(%p0,", "%e = exp(%p0) : f16[16, 20]\n    %y = dot(%e,")
    kernel = kernel_of(text, "split k 16; vectorize k.1; vectorize j; vectorize i")
    made = run_steps(kernel, parse_steps("tensorize"))
    (dot,) = (n for n in made.blocks[0].all_nodes if n.op == "dot")
    assert [a.op for a in dot.args] == ["select", "load"]
    assert all(a.dtype.name == "f16" for a in dot.args)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-3)


def test_what_is_loaded_is_zero_past_the_end_of_a_sum_also_behind_an_axis_of_one() -> None:
    text = MATMUL.replace("%p0: f16[16, 20]", "%p0: f16[16, 1, 20]")
    text = text.replace("%x: f16[16, 20]", "%x: f16[16, 1, 20]")
    text = text.replace("%y = dot(%p0,", "%e = reshape(%p0) : f16[16, 20]\n    %y = dot(%e,")
    kernel = kernel_of(text, "split k 16; vectorize k.1; vectorize j; vectorize i")
    made = run_steps(kernel, parse_steps("tensorize"))
    (dot,) = (n for n in made.blocks[0].all_nodes if n.op == "dot")
    assert [a.op for a in dot.args] == ["reshape", "load"]
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-3)


def test_a_tile_fits_in_registers() -> None:
    text = NEG.replace("[3, 5]", "[3, 100000]")
    with pytest.raises(IllegalStep, match="a tile of 100000 elements, and a program has 65536"):
        run_steps(emit(fused(text)), parse_steps("vectorize j"), as_gpu(load("sm_90")))


CONCAT = """func @f(%x: f32[3, 5], %y: f32[3, 12]) -> (f32[3, 17]) at tensor {
  %z = concat(%x, %y) {axis=1} : f32[3, 17]
  return %z
}
"""


@pytest.mark.parametrize(
    "text",
    [
        "specialize j",
        "partition j 9; specialize j",  # the guard changes in the first loop only
        "peel j 14; specialize j",  # in neither of them
        "partition j 2,8; reorder i j; specialize j at=i",
        "split j 5 tail=peel; specialize j.1",
        "specialize j; specialize j",
    ],
)
def test_ranges_of_loops_of_different_lengths(text: str) -> None:
    nest = emit(fused(CONCAT))
    kernel = nest
    for step in parse_steps(text):
        kernel = kernel if step.why_not(kernel) else step.apply(kernel)
    arrays = random_inputs(around(nest))
    assert not wrong(kernel, arrays, results(around(nest), arrays), 0)


TOTAL_TWICE = """func @f(%x: f32[3, 8, 5]) -> (f32[], f32[]) at tensor {
  %z = pad(%x, 1.0:f32) {high=[0, 2, 0], interior=[0, 0, 0], low=[2, 0, 0]} : f32[5, 10, 5]
  %t = reduce(%z) {axes=[0, 1, 2], kind="sum"} : f32[]
  %w = broadcast(%t) {axes=[]} : f32[5, 10, 5]
  %y = mul(%z, %w) : f32[5, 10, 5]
  %m = reduce(%y) {axes=[0, 1, 2], kind="max"} : f32[]
  return %t, %m
}
"""


@pytest.mark.parametrize(
    "text",
    [
        "peel r 1",
        "peel r_1 3",
        "split r 2 tail=peel",
        "partition r_1 8; peel r 2",
        "peel r_2 1",
        "unroll r_2; peel r 1",
        "fuse r_1 r_2; peel r 3",
    ],
)
def test_loops_that_share_variables_are_renamed_apart(text: str) -> None:
    """The second loop reads the total of the first one, whose loops have the same variables."""
    nest = emit(fused(TOTAL_TWICE))
    kernel = run_steps(nest, parse_steps(text))
    verify(around(kernel))
    arrays = random_inputs(around(nest))
    assert not wrong(kernel, arrays, results(around(nest), arrays), 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "split i 4; specialize i.1 at=r",
        "split i 4; specialize i.1 at=r; unroll i.1",
        "split i 4; split r 2; specialize i.1 at=r.1; partition r.1 1",
        "split i 4; split r 2; specialize i.1 at=r.0",
        "split i 4; specialize i.1",
    ],
)
def test_ranges_use_the_results_of_loops_before(text: str) -> None:
    """The total of a row is not computed again for each of its elements."""
    nest = emit(fused(TWICE.replace("[2", "[3")))
    kernel = run_steps(nest, parse_steps(text))
    verify(around(kernel))
    arrays = random_inputs(around(nest))
    assert not wrong(kernel, arrays, results(around(nest), arrays), 1e-5)


PADDED = """func @f(%x: f32[8, 6, 3]) -> (f32[9, 6, 7]) at tensor {
  %y = pad(%x, 1.0:f32) {high=[1, 0, 2], interior=[0, 0, 0], low=[0, 0, 2]} : f32[9, 6, 7]
  return %y
}
"""


@pytest.mark.parametrize(
    "text",
    [
        "split i 1; vectorize i.1; launch 1",
        "split i 1; split j 8; vectorize j.1; vectorize i.1; launch 1",
        "split i 2; split j 4; vectorize j.1; vectorize i.1; launch 1",
        "split i 1; vectorize i.1; split k 1; vectorize k.1; bind i.0 grid; launch 1",
        "split j 1; vectorize j.1; split i 16; vectorize i.1; launch 1",
    ],
)
def test_masked_blocks_stay_inside_of_memory(text: str) -> None:
    """A block of one element is past the end as a whole; the mask is that of another axis."""
    nest = emit(fused(PADDED))
    kernel = run_steps(nest, parse_steps(text), as_gpu(load("sm_90")))
    arrays = random_inputs(around(nest))
    assert not wrong(kernel, arrays, results(around(nest), arrays), 0)


UNREADABLE = {
    "tensorise r": "no primitive 'tensorise'; did you mean 'tensorize'? there are: accumulate",
    "split r": "block is missing; write `split AXIS BLOCK [tail=mask]`",
    "split r x": "block is a whole number, not 'x'",
    "split r ٣": "block is a whole number, not '٣'",
    "split r " + "9" * 5000: "block is a whole number, not '999",
    "split r 4 mask 7": "unexpected argument '7'",
    "split r 4 size=8": "unexpected argument 'size=8'",
    "split r 4 block=8": "unexpected argument 'block=8'",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_steps(text)
    assert UNREADABLE[text] in str(found.value)


def test_text_reads_back() -> None:
    text = "split r 4 tail=peel; split i 2\n# a comment\nvectorize r.1 # another\nlaunch 4 stages=3"
    steps = parse_steps(text)
    assert list(map(str, steps)) == [
        "split r 4 tail=peel", "split i 2", "vectorize r.1", "launch 4 stages=3",
    ]  # fmt: skip
    assert parse_steps("; ".join(map(str, steps))) == steps


def test_names_and_lines_stay() -> None:
    text = SUM.replace('kind="sum"} : f32[3]', 'kind="sum"} : f32[3] from "m.py:7"')
    kernel = run_steps(emit(fused(text)), parse_steps("split r 4; vectorize r.1; rfactor r.0"))
    block = kernel.blocks[0]
    total = next(n for n in block.all_nodes if n.op == "reduce")
    assert block.names[total] == "y"
    assert block.locs[total] == ("m.py:7",)
    assert parse(str(around(kernel))) is around(kernel)


def test_lines_stay_in_loops_from_which_a_value_goes() -> None:
    body = """%v = mul(%p0, %p0) : f32[3, 5] from "m.py:1"
    %w = mul(%v, 2.0:f32) : f32[3, 5] from "m.py:2"
    %y = reduce(%w) {axes=[1], kind="sum"} : f32[3] from "m.py:3"
"""
    text = f"""func @f(%x: f32[3, 5]) -> (f32[3]) at tensor {{
  %f = fusion(%x) {{kind="reduction", name="lines"}} : f32[3] {{(%p0: f32[3, 5])
    {body}
    return %y
  }}
  return %f
}}
"""
    edit = Edit(emit(fused(text)))
    product = next(n for n, name in edit.block.names.items() if name == "v")
    known = {product: constant(1.0, F32)}  # the other product is then the first node of its loop
    made = edit.finished(edit.values(edit.block.results, known)).blocks[0]
    (doubled,) = (n for n in made.all_nodes if n.op == "mul")
    assert (made.names[doubled], made.locs[doubled]) == ("w", ("m.py:2",))


def test_loops_inside_of_a_vectorized_one_are_built_once() -> None:
    def calls(loops: int) -> int:
        axes = tuple(range(1, loops + 1))
        sizes = ", ".join(["4"] * (loops + 1))
        text = f"""func @f(%x: f32[{sizes}]) -> (f32[4]) at tensor {{
          %y = reduce(%x) {{axes={list(axes)}, kind="sum"}} : f32[4]
          return %y
        }}
        """
        (step,) = parse_steps("vectorize i")
        kernel = kernel_of(text)
        return calls_of(lambda: step.apply(kernel))[1]

    calls(2)  # caches
    assert calls(7) < 2 * calls(3)
