"""Steps bound, branch, reverse and assume: the text of a kernel before and after."""

from __future__ import annotations

import pytest
from masked_nests import BLOCKS, CAUSAL, TILES, rows, total
from nest_cases import texts_differ

BOUND_BEFORE = """
%iota = iota() {axis=0} : i32<4>
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, 4:i32) : i32[]
  %add = add(%mul, %iota) : i32<4>
  %broadcast_1 = broadcast(%add) {axes=[0]} : i32<4x4>
  %y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %add_1 = add(%mul_1, %iota) : i32<4>
    %broadcast_2 = broadcast(%add_1) {axes=[1]} : i32<4x4>
    %t = gt(%broadcast_2, %broadcast_1) : bool<4x4>
    %load = load(%p0, %mul, %mul_1) : f32<4x4>
    %x = select(%t, 0.0:f32, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%acc_1, %reduce) : f32<4>
    return %add_2
  }
  %store = store(%o0_2, %y, %mul) : f32[8]
  return %store
}
return %loop
"""
BOUND = """
%iota = iota() {axis=0} : i32<4>
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, 4:i32) : i32[]
  %add = add(%mul, 7:i32) : i32[]
  %max = max(%add, 0:i32) : i32[]
  %min = min(%max, 8:i32) : i32[]
  %div = div(%min, 4:i32) : i32[]
  %add_1 = add(%mul, %iota) : i32<4>
  %broadcast_1 = broadcast(%add_1) {axes=[0]} : i32<4x4>
  %y = loop(0:i32, %div, %broadcast) {kind="serial", limited=true} : f32<4>
      {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %add_2 = add(%mul_1, %iota) : i32<4>
    %broadcast_2 = broadcast(%add_2) {axes=[1]} : i32<4x4>
    %t = gt(%broadcast_2, %broadcast_1) : bool<4x4>
    %load = load(%p0, %mul, %mul_1) : f32<4x4>
    %x = select(%t, 0.0:f32, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_3 = add(%acc_1, %reduce) : f32<4>
    return %add_3
  }
  %store = store(%o0_2, %y, %mul) : f32[8]
  return %store
}
return %loop
"""
BOUND_CUT = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, 4:i32) : i32[]
  %add = add(%mul, 1:i32) : i32[]
  %max = max(%add, 0:i32) : i32[]
  %min = min(%max, 8:i32) : i32[]
  %div = div(%min, 4:i32) : i32[]
  %add_1 = add(%mul, 7:i32) : i32[]
  %max_1 = max(%add_1, 0:i32) : i32[]
  %min_1 = min(%max_1, 8:i32) : i32[]
  %div_1 = div(%min_1, 4:i32) : i32[]
  %min_2 = min(%div, %div_1) : i32[]
  %loop_1 = loop(0:i32, %min_2, %broadcast) {kind="serial", limited=true} : f32<4>
      {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %x = load(%p0, %mul, %mul_1) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_3 = add(%acc_1, %reduce) : f32<4>
    return %add_3
  }
  %add_2 = add(%mul, %iota) : i32<4>
  %broadcast_1 = broadcast(%add_2) {axes=[0]} : i32<4x4>
  %y = loop(%min_2, %div_1, %loop_1) {kind="serial", limited=true} : f32<4>
      {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %add_4 = add(%mul_1, %iota) : i32<4>
    %broadcast_2 = broadcast(%add_4) {axes=[1]} : i32<4x4>
    %t = gt(%broadcast_2, %broadcast_1) : bool<4x4>
    %x = load(%p0, %mul, %mul_1) : f32<4x4>
    %x_1 = select(%t, 0.0:f32, %x) : f32<4x4>
    %reduce_1 = reduce(%x_1) {axes=[1], kind="sum"} : f32<4>
    %add_5 = add(%acc_1, %reduce_1) : f32<4>
    return %add_5
  }
  %store = store(%o0_2, %y, %mul) : f32[8]
  return %store
}
return %loop
"""
BLOCKS_BEFORE = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%broadcast_1 = broadcast(0.0:f32) {axes=[]} : f32<4>
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, 4:i32) : i32[]
  %n = load(%p0, %mul) : i32<4>
  %broadcast_2 = broadcast(%n) {axes=[0]} : i32<4x4>
  %loop_1 = loop(%broadcast, %broadcast_1) {kind="serial", online=true} : (f32<4>, f32<4>)
      {(%r.0 < 2: i32, %acc_2: f32<4>, %acc_3: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %add = add(%mul_1, %iota) : i32<4>
    %div = div(%add, 2:i32) : i32<4>
    %broadcast_3 = broadcast(%div) {axes=[1]} : i32<4x4>
    %t = ge(%broadcast_3, %broadcast_2) : bool<4x4>
    %load = load(%p1, %mul, %mul_1) : f32<4x4>
    %x = select(%t, -inf:f32, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="max"} : f32<4>
    %max = max(%acc_2, %reduce) : f32<4>
    %abs_1 = abs(%max) : f32<4>
    %eq_1 = eq(%abs_1, inf:f32) : bool<4>
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32<4>
    %sub = sub(%acc_2, %select_1) : f32<4>
    %exp = exp(%sub) : f32<4>
    %mul_2 = mul(%acc_3, %exp) : f32<4>
    %broadcast_4 = broadcast(%select_1) {axes=[0]} : f32<4x4>
    %sub_1 = sub(%x, %broadcast_4) : f32<4x4>
    %exp_1 = exp(%sub_1) : f32<4x4>
    %reduce_1 = reduce(%exp_1) {axes=[1], kind="sum"} : f32<4>
    %add_1 = add(%mul_2, %reduce_1) : f32<4>
    return %max, %add_1
  }
  %item = item(%loop_1) {index=0} : f32<4>
  %abs = abs(%item) : f32<4>
  %eq = eq(%abs, inf:f32) : bool<4>
  %item_1 = item(%loop_1) {index=1} : f32<4>
  %select = select(%eq, nan:f32, %item_1) : f32<4>
  %store = store(%o0_2, %select, %mul) : f32[8]
  return %store
}
return %loop
"""
BLOCKS_BOUND = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%broadcast_1 = broadcast(0.0:f32) {axes=[]} : f32<4>
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, 4:i32) : i32[]
  %n = load(%p0, %mul) : i32<4>
  %reduce = reduce(%n) {axes=[0], kind="max"} : i32[]
  %max = max(%reduce, -536870912:i32) : i32[]
  %min = min(%max, 536870912:i32) : i32[]
  %mul_1 = mul(%min, 2:i32) : i32[]
  %add = add(%mul_1, 3:i32) : i32[]
  %max_1 = max(%add, 0:i32) : i32[]
  %min_1 = min(%max_1, 8:i32) : i32[]
  %div = div(%min_1, 4:i32) : i32[]
  %broadcast_2 = broadcast(%n) {axes=[0]} : i32<4x4>
  %loop_1 = loop(0:i32, %div, %broadcast, %broadcast_1)
      {kind="serial", limited=true, online=true} : (f32<4>, f32<4>)
      {(%r.0 < 2: i32, %acc_2: f32<4>, %acc_3: f32<4>)
    %mul_2 = mul(%r.0, 4:i32) : i32[]
    %add_1 = add(%mul_2, %iota) : i32<4>
    %div_1 = div(%add_1, 2:i32) : i32<4>
    %broadcast_3 = broadcast(%div_1) {axes=[1]} : i32<4x4>
    %t = ge(%broadcast_3, %broadcast_2) : bool<4x4>
    %load = load(%p1, %mul, %mul_2) : f32<4x4>
    %x = select(%t, -inf:f32, %load) : f32<4x4>
    %reduce_1 = reduce(%x) {axes=[1], kind="max"} : f32<4>
    %max_2 = max(%acc_2, %reduce_1) : f32<4>
    %abs_1 = abs(%max_2) : f32<4>
    %eq_1 = eq(%abs_1, inf:f32) : bool<4>
    %select_1 = select(%eq_1, 0.0:f32, %max_2) : f32<4>
    %sub = sub(%acc_2, %select_1) : f32<4>
    %exp = exp(%sub) : f32<4>
    %mul_3 = mul(%acc_3, %exp) : f32<4>
    %broadcast_4 = broadcast(%select_1) {axes=[0]} : f32<4x4>
    %sub_1 = sub(%x, %broadcast_4) : f32<4x4>
    %exp_1 = exp(%sub_1) : f32<4x4>
    %reduce_2 = reduce(%exp_1) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%mul_3, %reduce_2) : f32<4>
    return %max_2, %add_2
  }
  %item = item(%loop_1) {index=0} : f32<4>
  %abs = abs(%item) : f32<4>
  %eq = eq(%abs, inf:f32) : bool<4>
  %item_1 = item(%loop_1) {index=1} : f32<4>
  %select = select(%eq, nan:f32, %item_1) : f32<4>
  %store = store(%o0_2, %select, %mul) : f32[8]
  return %store
}
return %loop
"""
BRANCH = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul = mul(%i.0, -4:i32) : i32[]
  %mul_1 = mul(%i.0, 4:i32) : i32[]
  %y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_2 = mul(%r.0, 4:i32) : i32[]
    %add = add(%mul_2, %mul) : i32[]
    %add_1 = add(%add, 2:i32) : i32[]
    %ge = ge(%add_1, 0:i32) : bool[]
    %cast = cast(%ge) : i32[]
    %load = load(%p0, %mul_1, %mul_2) : f32<4x4>
    %x = loop(0:i32, %cast, %load) {kind="branch", limited=true} : f32<4x4>
        {(%once < 1: i32, %shown: f32<4x4>)
      %add_3 = add(%r.0, %once) : i32[]
      %mul_3 = mul(%add_3, 4:i32) : i32[]
      %add_4 = add(%mul_3, %iota) : i32<4>
      %broadcast_1 = broadcast(%add_4) {axes=[1]} : i32<4x4>
      %add_5 = add(%i.0, %once) : i32[]
      %mul_4 = mul(%add_5, 4:i32) : i32[]
      %add_6 = add(%mul_4, %iota) : i32<4>
      %broadcast_2 = broadcast(%add_6) {axes=[0]} : i32<4x4>
      %t = gt(%broadcast_1, %broadcast_2) : bool<4x4>
      %select = select(%t, 0.0:f32, %shown) : f32<4x4>
      return %select
    }
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%acc_1, %reduce) : f32<4>
    return %add_2
  }
  %store = store(%o0_2, %y, %mul_1) : f32[8]
  return %store
}
return %loop
"""
REVERSE = """
%iota = iota() {axis=0} : i32<4>
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %sub = sub(1:i32, %i.0) : i32[]
  %mul = mul(%sub, 4:i32) : i32[]
  %add = add(%mul, %iota) : i32<4>
  %broadcast_1 = broadcast(%add) {axes=[0]} : i32<4x4>
  %y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %add_1 = add(%mul_1, %iota) : i32<4>
    %broadcast_2 = broadcast(%add_1) {axes=[1]} : i32<4x4>
    %t = gt(%broadcast_2, %broadcast_1) : bool<4x4>
    %load = load(%p0, %mul, %mul_1) : f32<4x4>
    %x = select(%t, 0.0:f32, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%acc_1, %reduce) : f32<4>
    return %add_2
  }
  %store = store(%o0_2, %y, %mul) : f32[8]
  return %store
}
return %loop
"""
ASSUME_BEFORE = """
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %add = add(%mul, %iota) : i32<4>
    %t = gt(%add, %i) : bool<4>
    %load = load(%p0, %i, %mul) : f32<4>
    %x = select(%t, -1e+09:f32, %load) : f32<4>
    %reduce = reduce(%x) {axes=[0], kind="max"} : f32[]
    %max = max(%acc_2, %reduce) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_2, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul_1 = mul(%acc_3, %exp) : f32[]
    %sub_1 = sub(%x, %select_1) : f32<4>
    %exp_1 = exp(%sub_1) : f32<4>
    %reduce_1 = reduce(%exp_1) {axes=[0], kind="sum"} : f32[]
    %add_1 = add(%mul_1, %reduce_1) : f32[]
    return %max, %add_1
  }
  %m = item(%loop_1) {index=0} : f32[]
  %abs = abs(%m) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %l = item(%loop_1) {index=1} : f32[]
  %select = select(%eq, nan:f32, %l) : f32[]
  %store = store(%o0_1, %select, %i) : f32[2]
  return %store
}
return %loop
"""
ASSUME = """
%iota = iota() {axis=0} : i32<4>
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %add = add(%mul, %iota) : i32<4>
    %t = gt(%add, %i) : bool<4>
    %load = load(%p0, %i, %mul) : f32<4>
    %x = select(%t, -inf:f32, %load) : f32<4>
    %reduce = reduce(%x) {axes=[0], kind="max"} : f32[]
    %max = max(%acc_2, %reduce) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_2, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul_1 = mul(%acc_3, %exp) : f32[]
    %sub_1 = sub(%x, %select_1) : f32<4>
    %exp_1 = exp(%sub_1) : f32<4>
    %reduce_1 = reduce(%exp_1) {axes=[0], kind="sum"} : f32[]
    %add_1 = add(%mul_1, %reduce_1) : f32[]
    return %max, %add_1
  }
  %item = item(%loop_1) {index=0} : f32[]
  %gt = gt(%item, -500000000.0:f32) : bool[]
  %not = not(%gt) : bool[]
  %cast = cast(%not) : i32[]
  %item_1 = item(%loop_1) {index=1} : f32[]
  %loop_2 = loop(0:i32, %cast, %item, %item_1) {kind="branch", limited=true} : (f32[], f32[])
      {(%again < 1: i32, %acc: f32[], %acc_1: f32[])
    %loop_3 = loop(%again, 2:i32, -inf:f32, 0.0:f32)
        {ahead=1, kind="serial", limited=true, online=true}
        : (f32[], f32[])
        {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
      %mul = mul(%r.0, 4:i32) : i32[]
      %add = add(%mul, %iota) : i32<4>
      %t = gt(%add, %i) : bool<4>
      %load = load(%p0, %i, %mul) : f32<4>
      %x_1 = select(%t, -1e+09:f32, %load) : f32<4>
      %reduce_2 = reduce(%x_1) {axes=[0], kind="max"} : f32[]
      %max_1 = max(%acc_2, %reduce_2) : f32[]
      %abs_2 = abs(%max_1) : f32[]
      %eq_2 = eq(%abs_2, inf:f32) : bool[]
      %select_2 = select(%eq_2, 0.0:f32, %max_1) : f32[]
      %sub_2 = sub(%acc_2, %select_2) : f32[]
      %exp_2 = exp(%sub_2) : f32[]
      %mul_2 = mul(%acc_3, %exp_2) : f32[]
      %sub_3 = sub(%x_1, %select_2) : f32<4>
      %exp_3 = exp(%sub_3) : f32<4>
      %reduce_3 = reduce(%exp_3) {axes=[0], kind="sum"} : f32[]
      %add_2 = add(%mul_2, %reduce_3) : f32[]
      return %max_1, %add_2
    }
    %item_2 = item(%loop_3) {index=0} : f32[]
    %item_3 = item(%loop_3) {index=1} : f32[]
    return %item_2, %item_3
  }
  %m = item(%loop_2) {index=0} : f32[]
  %abs = abs(%m) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %l = item(%loop_2) {index=1} : f32[]
  %select = select(%eq, nan:f32, %l) : f32[]
  %store = store(%o0_1, %select, %i) : f32[2]
  return %store
}
return %loop
"""
# name: (program, steps before, the step, kernel before, kernel after)
CASES = {
    "bound": (
        total(CAUSAL),
        "split i 4; split r 4; vectorize r.1; vectorize i.1",
        "bound r.0",
        BOUND_BEFORE,
        BOUND,
    ),
    "bound_cut": (
        total(CAUSAL),
        "split i 4; split r 4; vectorize r.1; vectorize i.1",
        "bound r.0 where=cut",
        BOUND_BEFORE,
        BOUND_CUT,
    ),
    "bound_blocks": (rows(BLOCKS, 8, 8), TILES, "bound r.0", BLOCKS_BEFORE, BLOCKS_BOUND),
    "branch": (
        total(CAUSAL),
        "split i 4; split r 4; vectorize r.1; vectorize i.1",
        "branch r.0",
        BOUND_BEFORE,
        BRANCH,
    ),
    "reverse": (
        total(CAUSAL),
        "split i 4; split r 4; vectorize r.1; vectorize i.1",
        "reverse i.0",
        BOUND_BEFORE,
        REVERSE,
    ),
    "assume": (
        rows(CAUSAL, 2, 8, "-1e9"),
        "split r 4; block r.1; vectorize r.1",
        "assume r.0",
        ASSUME_BEFORE,
        ASSUME,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_expected(name: str) -> None:
    assert not texts_differ(*CASES[name])
