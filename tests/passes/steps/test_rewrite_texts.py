"""Rules of step rewrite, and step window: the text of a kernel before and after."""

from __future__ import annotations

import pytest
from nest_cases import texts_differ
from stream_nests import VARIANCE, sums

FACTOR = """func @f(%a: f32[4, 8]) -> (f32[4]) at tensor {
  %s = mul(%a, 0.125:f32) : f32[4, 8]
  %y = reduce(%s) {axes=[1], kind="max"} : f32[4]
  return %y
}
"""
BIAS = """func @f(%a: f32[8, 8]) -> (f32[8]) at tensor {
  %i = iota() {axis=0} : i32[8, 8]
  %j = iota() {axis=1} : i32[8, 8]
  %d = sub(%j, %i) : i32[8, 8]
  %c = cast(%d) : f32[8, 8]
  %x = mul(%c, %a) : f32[8, 8]
  %y = reduce(%x) {axes=[1], kind="sum"} : f32[8]
  return %y
}
"""
TABLE = """func @f(%p: f32[15], %a: f32[8, 8]) -> (f32[8]) at tensor {
  %i = iota() {axis=0} : i32[8, 8]
  %j = iota() {axis=1} : i32[8, 8]
  %d = sub(%j, %i) : i32[8, 8]
  %c = add(%d, 7:i32) : i32[8, 8]
  %g = gather(%p, %c) {rule="w!, a b -> a b"} : f32[8, 8]
  %x = mul(%g, %a) : f32[8, 8]
  %y = reduce(%x) {axes=[1], kind="sum"} : f32[8]
  return %y
}
"""
SCALE_BEFORE = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
  %mul = mul(%r.0, 4:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) : f32<4x4>
  %s = mul(%load, 0.125:f32) : f32<4x4>
  %reduce = reduce(%s) {axes=[1], kind="max"} : f32<4>
  %max = max(%acc_1, %reduce) : f32<4>
  return %max
}
%store = store(%o0, %y, 0:i32) : f32[4]
return %store
"""
SCALE = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
  %mul = mul(%r.0, 4:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) : f32<4x4>
  %reduce = reduce(%load) {axes=[1], kind="max"} : f32<4>
  %mul_1 = mul(%reduce, 0.125:f32) : f32<4>
  %max = max(%acc_1, %mul_1) : f32<4>
  return %max
}
%store = store(%o0, %y, 0:i32) : f32[4]
return %store
"""
POSITIONS_BEFORE = """
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
    %d = sub(%broadcast_2, %broadcast_1) : i32<4x4>
    %c = cast(%d) : f32<4x4>
    %load = load(%p0, %mul, %mul_1) : f32<4x4>
    %x = mul(%c, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%acc_1, %reduce) : f32<4>
    return %add_2
  }
  %store = store(%o0_2, %y, %mul) : f32[8]
  return %store
}
return %loop
"""
POSITIONS = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%iota = iota() {axis=0} : i32<4>
%mul = mul(%iota, 1:i32) : i32<4>
%cast = cast(%mul) : f32<4>
%broadcast_1 = broadcast(%cast) {axes=[1]} : f32<4x4>
%mul_1 = mul(%iota, -1:i32) : i32<4>
%cast_1 = cast(%mul_1) : f32<4>
%broadcast_2 = broadcast(%cast_1) {axes=[0]} : f32<4x4>
%add = add(%broadcast_1, %broadcast_2) : f32<4x4>
%loop = loop(%o0) {kind="serial"} : f32[8] {(%i.0 < 2: i32, %o0_2: f32[8])
  %mul_2 = mul(%i.0, -4:i32) : i32[]
  %mul_3 = mul(%i.0, 4:i32) : i32[]
  %y = loop(%broadcast) {kind="serial"} : f32<4> {(%r.0 < 2: i32, %acc_1: f32<4>)
    %mul_4 = mul(%r.0, 4:i32) : i32[]
    %add_1 = add(%mul_4, %mul_2) : i32[]
    %cast_2 = cast(%add_1) : f32[]
    %broadcast_3 = broadcast(%cast_2) {axes=[]} : f32<4x4>
    %c = add(%broadcast_3, %add) : f32<4x4>
    %load = load(%p0, %mul_3, %mul_4) : f32<4x4>
    %x = mul(%c, %load) : f32<4x4>
    %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<4>
    %add_2 = add(%acc_1, %reduce) : f32<4>
    return %add_2
  }
  %store = store(%o0_2, %y, %mul_3) : f32[8]
  return %store
}
return %loop
"""
WINDOW_BEFORE = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%iota = iota() {axis=0} : i32<8>
%mul = mul(%iota, -1:i32) : i32<8>
%iota_1 = iota() {axis=0} : i32<4>
%broadcast_1 = broadcast(%iota_1) {axes=[1]} : i32<8x4>
%y = loop(%broadcast) {kind="serial"} : f32<8> {(%r.0 < 2: i32, %acc_1: f32<8>)
  %mul_1 = mul(%r.0, 4:i32) : i32[]
  %add = add(%mul, %mul_1) : i32<8>
  %add_1 = add(%add, 7:i32) : i32<8>
  %broadcast_2 = broadcast(%add_1) {axes=[0]} : i32<8x4>
  %add_2 = add(%broadcast_2, %broadcast_1) : i32<8x4>
  %g = load(%p0, %add_2) : f32<8x4>
  %load = load(%p1, 0:i32, %mul_1) : f32<8x4>
  %x = mul(%g, %load) : f32<8x4>
  %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<8>
  %add_3 = add(%acc_1, %reduce) : f32<8>
  return %add_3
}
%store = store(%o0, %y, 0:i32) : f32[8]
return %store
"""
WINDOW = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%iota = iota() {axis=0} : i32<16>
%iota_1 = iota() {axis=0} : i32<8>
%mul = mul(%iota_1, -1:i32) : i32<8>
%add = add(7:i32, %mul) : i32<8>
%broadcast_1 = broadcast(%add) {axes=[0]} : i32<8x4>
%iota_2 = iota() {axis=0} : i32<4>
%mul_1 = mul(%iota_2, 1:i32) : i32<4>
%broadcast_2 = broadcast(%mul_1) {axes=[1]} : i32<8x4>
%add_1 = add(%broadcast_1, %broadcast_2) : i32<8x4>
%y = loop(%broadcast) {kind="serial"} : f32<8> {(%r.0 < 2: i32, %acc_1: f32<8>)
  %mul_2 = mul(%r.0, 4:i32) : i32[]
  %broadcast_3 = broadcast(%mul_2) {axes=[]} : i32<16>
  %add_2 = add(%broadcast_3, %iota) : i32<16>
  %lt = lt(%add_2, 15:i32) : bool<16>
  %load = load(%p0, %add_2, %lt, 0.0:f32) : f32<16>
  %g = gather(%load, %add_1) {rule="w!, t0 t1 -> t0 t1"} : f32<8x4>
  %load_1 = load(%p1, 0:i32, %mul_2) : f32<8x4>
  %x = mul(%g, %load_1) : f32<8x4>
  %reduce = reduce(%x) {axes=[1], kind="sum"} : f32<8>
  %add_3 = add(%acc_1, %reduce) : f32<8>
  return %add_3
}
%store = store(%o0, %y, 0:i32) : f32[8]
return %store
"""
EXP2_BEFORE = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%broadcast_1 = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%broadcast, %broadcast_1) {kind="serial", online=true} : (f32<4>, f32<4>)
    {(%r.0 < 2: i32, %acc_2: f32<4>, %acc_3: f32<4>)
  %mul = mul(%r.0, 4:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) : f32<4x4>
  %reduce = reduce(%load) {axes=[1], kind="max"} : f32<4>
  %max = max(%acc_2, %reduce) : f32<4>
  %abs_1 = abs(%max) : f32<4>
  %eq_1 = eq(%abs_1, inf:f32) : bool<4>
  %select_1 = select(%eq_1, 0.0:f32, %max) : f32<4>
  %sub = sub(%acc_2, %select_1) : f32<4>
  %exp = exp(%sub) : f32<4>
  %mul_1 = mul(%acc_3, %exp) : f32<4>
  %broadcast_2 = broadcast(%select_1) {axes=[0]} : f32<4x4>
  %sub_1 = sub(%load, %broadcast_2) : f32<4x4>
  %exp_1 = exp(%sub_1) : f32<4x4>
  %reduce_1 = reduce(%exp_1) {axes=[1], kind="sum"} : f32<4>
  %add = add(%mul_1, %reduce_1) : f32<4>
  return %max, %add
}
%item = item(%loop) {index=0} : f32<4>
%abs = abs(%item) : f32<4>
%eq = eq(%abs, inf:f32) : bool<4>
%item_1 = item(%loop) {index=1} : f32<4>
%select = select(%eq, nan:f32, %item_1) : f32<4>
%store = store(%o0, %select, 0:i32) : f32[4]
return %store
"""
EXP2 = """
%broadcast = broadcast(-inf:f32) {axes=[]} : f32<4>
%broadcast_1 = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%broadcast, %broadcast_1) {kind="serial", online=true} : (f32<4>, f32<4>)
    {(%r.0 < 2: i32, %acc_2: f32<4>, %acc_3: f32<4>)
  %mul = mul(%r.0, 4:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) : f32<4x4>
  %reduce = reduce(%load) {axes=[1], kind="max"} : f32<4>
  %max = max(%acc_2, %reduce) : f32<4>
  %abs_1 = abs(%max) : f32<4>
  %eq_1 = eq(%abs_1, inf:f32) : bool<4>
  %select_1 = select(%eq_1, 0.0:f32, %max) : f32<4>
  %sub = sub(%acc_2, %select_1) : f32<4>
  %exp = exp(%sub) : f32<4>
  %mul_1 = mul(%acc_3, %exp) : f32<4>
  %abs_2 = abs(%select_1) : f32<4>
  %lt = lt(%abs_2, 1.0737418e+09:f32) : bool<4>
  %select_2 = select(%lt, 1.442695:f32, 1.0:f32) : f32<4>
  %broadcast_2 = broadcast(%select_2) {axes=[0]} : f32<4x4>
  %mul_2 = mul(%load, %broadcast_2) : f32<4x4>
  %mul_3 = mul(%select_1, %select_2) : f32<4>
  %broadcast_3 = broadcast(%mul_3) {axes=[0]} : f32<4x4>
  %sub_1 = sub(%mul_2, %broadcast_3) : f32<4x4>
  %exp2 = exp2(%sub_1) : f32<4x4>
  %reduce_1 = reduce(%exp2) {axes=[1], kind="sum"} : f32<4>
  %add = add(%mul_1, %reduce_1) : f32<4>
  return %max, %add
}
%item = item(%loop) {index=0} : f32<4>
%abs = abs(%item) : f32<4>
%eq = eq(%abs, inf:f32) : bool<4>
%item_1 = item(%loop) {index=1} : f32<4>
%select = select(%eq, nan:f32, %item_1) : f32<4>
%store = store(%o0, %select, 0:i32) : f32[4]
return %store
"""
INVERSES_BEFORE = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(%broadcast, 0.0:f32, %broadcast) {kind="serial", online=true}
      : (f32<4>, f32[], f32<4>)
      {(%r.0 < 2: i32, %acc: f32<4>, %acc_1: f32[], %acc_2: f32<4>)
    %mul_2 = mul(%r.0, 4:i32) : i32[]
    %load = load(%p0, %i, %mul_2) : f32<4>
    %add_1 = add(%acc, %load) : f32<4>
    %add_2 = add(%acc_1, 1.0:f32) : f32[]
    %max_2 = max(%acc_1, 1.0:f32) : f32[]
    %div_2 = div(%acc, %max_2) : f32<4>
    %max_3 = max(%add_2, 1.0:f32) : f32[]
    %div_3 = div(%add_1, %max_3) : f32<4>
    %sub_1 = sub(%div_2, %div_3) : f32<4>
    %mul_3 = mul(%sub_1, %sub_1) : f32<4>
    %mul_4 = mul(%acc_1, %mul_3) : f32<4>
    %add_3 = add(%acc_2, %mul_4) : f32<4>
    %div_4 = div(%add_1, %add_2) : f32<4>
    %sub_2 = sub(%load, %div_4) : f32<4>
    %mul_5 = mul(%sub_2, %sub_2) : f32<4>
    %add_4 = add(%add_3, %mul_5) : f32<4>
    return %add_1, %add_2, %add_4
  }
  %item = item(%loop_1) {index=2} : f32<4>
  %item_1 = item(%loop_1) {index=1} : f32[]
  %item_2 = item(%loop_1) {index=0} : f32<4>
  %max = max(%item_1, 1.0:f32) : f32[]
  %div = div(%item_2, %max) : f32<4>
  %reduce = reduce(%item_2) {axes=[0], kind="sum"} : f32[]
  %broadcast_1 = broadcast(%item_1) {axes=[]} : f32<4>
  %reduce_1 = reduce(%broadcast_1) {axes=[0], kind="sum"} : f32[]
  %max_1 = max(%reduce_1, 1.0:f32) : f32[]
  %div_1 = div(%reduce, %max_1) : f32[]
  %sub = sub(%div, %div_1) : f32<4>
  %mul = mul(%sub, %sub) : f32<4>
  %mul_1 = mul(%item_1, %mul) : f32<4>
  %add = add(%item, %mul_1) : f32<4>
  %reduce_2 = reduce(%add) {axes=[0], kind="sum"} : f32[]
  %store = store(%o0_1, %reduce_2, %i) : f32[3]
  return %store
}
return %loop
"""
INVERSES = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(%broadcast, 0.0:f32, %broadcast) {kind="serial", online=true}
    : (f32<4>, f32[], f32<4>)
    {(%r.0 < 2: i32, %acc: f32<4>, %acc_1: f32[], %acc_2: f32<4>)
    %mul_3 = mul(%r.0, 4:i32) : i32[]
    %load = load(%p0, %i, %mul_3) : f32<4>
    %add_1 = add(%acc, %load) : f32<4>
    %add_2 = add(%acc_1, 1.0:f32) : f32[]
    %max_2 = max(%acc_1, 1.0:f32) : f32[]
    %div_2 = div(1.0:f32, %max_2) : f32[]
    %mul_4 = mul(%acc, %div_2) : f32<4>
    %max_3 = max(%add_2, 1.0:f32) : f32[]
    %div_3 = div(1.0:f32, %max_3) : f32[]
    %mul_5 = mul(%add_1, %div_3) : f32<4>
    %sub_1 = sub(%mul_4, %mul_5) : f32<4>
    %mul_6 = mul(%sub_1, %sub_1) : f32<4>
    %mul_7 = mul(%acc_1, %mul_6) : f32<4>
    %add_3 = add(%acc_2, %mul_7) : f32<4>
    %div_4 = div(1.0:f32, %add_2) : f32[]
    %mul_8 = mul(%add_1, %div_4) : f32<4>
    %sub_2 = sub(%load, %mul_8) : f32<4>
    %mul_9 = mul(%sub_2, %sub_2) : f32<4>
    %add_4 = add(%add_3, %mul_9) : f32<4>
    return %add_1, %add_2, %add_4
  }
  %item = item(%loop_1) {index=2} : f32<4>
  %item_1 = item(%loop_1) {index=1} : f32[]
  %item_2 = item(%loop_1) {index=0} : f32<4>
  %max = max(%item_1, 1.0:f32) : f32[]
  %div = div(1.0:f32, %max) : f32[]
  %mul = mul(%item_2, %div) : f32<4>
  %reduce = reduce(%item_2) {axes=[0], kind="sum"} : f32[]
  %broadcast_1 = broadcast(%item_1) {axes=[]} : f32<4>
  %reduce_1 = reduce(%broadcast_1) {axes=[0], kind="sum"} : f32[]
  %max_1 = max(%reduce_1, 1.0:f32) : f32[]
  %div_1 = div(%reduce, %max_1) : f32[]
  %sub = sub(%mul, %div_1) : f32<4>
  %mul_1 = mul(%sub, %sub) : f32<4>
  %mul_2 = mul(%item_1, %mul_1) : f32<4>
  %add = add(%item, %mul_2) : f32<4>
  %reduce_2 = reduce(%add) {axes=[0], kind="sum"} : f32[]
  %store = store(%o0_1, %reduce_2, %i) : f32[3]
  return %store
}
return %loop
"""
# name: (program, steps before, the step, kernel before, kernel after)
CASES = {
    "scale": (
        FACTOR,
        "split r 4; vectorize r.1; vectorize i",
        "rewrite scale",
        SCALE_BEFORE,
        SCALE,
    ),
    "positions": (
        BIAS,
        "split i 4; split r 4; vectorize r.1; vectorize i.1",
        "rewrite positions",
        POSITIONS_BEFORE,
        POSITIONS,
    ),
    "window": (TABLE, "split r 4; vectorize r.1; vectorize i", "window p0", WINDOW_BEFORE, WINDOW),
    "exp2": (
        sums(4, 8),
        "split r 4; block r.1; vectorize r.1; vectorize i",
        "rewrite exp2",
        EXP2_BEFORE,
        EXP2,
    ),
    "inverses": (
        VARIANCE,
        "split r 4; reorder r.0 r.1; block r.1; vectorize r.1",
        "rewrite inverses",
        INVERSES_BEFORE,
        INVERSES,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_expected(name: str) -> None:
    assert not texts_differ(*CASES[name])
