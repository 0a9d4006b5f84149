"""Steps of online loops, and of rows that are read twice: a kernel before and after."""

from __future__ import annotations

import pytest
from nest_cases import texts_differ
from stream_nests import VARIANCE, sums

SHARE = """func @f(%x: f32[6]) -> (f32[6]) at tensor {
  %t = reduce(%x) {axes=[0], kind="sum"} : f32[]
  %w = broadcast(%t) {axes=[]} : f32[6]
  %y = div(%x, %w) : f32[6]
  return %y
}
"""
RFACTOR_BEFORE = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<4>
    %reduce = reduce(%load) {axes=[0], kind="max"} : f32[]
    %max = max(%acc_2, %reduce) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_2, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul_1 = mul(%acc_3, %exp) : f32[]
    %sub_1 = sub(%load, %select_1) : f32<4>
    %exp_1 = exp(%sub_1) : f32<4>
    %reduce_1 = reduce(%exp_1) {axes=[0], kind="sum"} : f32[]
    %add = add(%mul_1, %reduce_1) : f32[]
    return %max, %add
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
RFACTOR = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<4>
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, %broadcast) {kind="serial", online=true} : (f32[], f32<4>)
      {(%r.0 < 2: i32, %acc_2: f32[], %lanes: f32<4>)
    %mul = mul(%r.0, 4:i32) : i32[]
    %load = load(%p0, %i, %mul) : f32<4>
    %reduce_1 = reduce(%load) {axes=[0], kind="max"} : f32[]
    %max = max(%acc_2, %reduce_1) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_2, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %broadcast_1 = broadcast(%exp) {axes=[]} : f32<4>
    %mul_1 = mul(%lanes, %broadcast_1) : f32<4>
    %sub_1 = sub(%load, %select_1) : f32<4>
    %exp_1 = exp(%sub_1) : f32<4>
    %add = add(%mul_1, %exp_1) : f32<4>
    return %max, %add
  }
  %item = item(%loop_1) {index=0} : f32[]
  %abs = abs(%item) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %item_1 = item(%loop_1) {index=1} : f32<4>
  %reduce = reduce(%item_1) {axes=[0], kind="sum"} : f32[]
  %select = select(%eq, nan:f32, %reduce) : f32[]
  %store = store(%o0_1, %select, %i) : f32[2]
  return %store
}
return %loop
"""
REORDER_BEFORE = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %loop_2 = loop(%acc_2, %acc_3) {kind="serial", online=true} : (f32[], f32[])
        {(%r.1 < 4: i32, %acc: f32[], %acc_1: f32[])
      %add = add(%mul, %r.1) : i32[]
      %load = load(%p0, %i, %add) : f32[]
      %max = max(%acc, %load) : f32[]
      %abs_1 = abs(%max) : f32[]
      %eq_1 = eq(%abs_1, inf:f32) : bool[]
      %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
      %sub = sub(%acc, %select_1) : f32[]
      %exp = exp(%sub) : f32[]
      %mul_1 = mul(%acc_1, %exp) : f32[]
      %sub_1 = sub(%load, %select_1) : f32[]
      %exp_1 = exp(%sub_1) : f32[]
      %add_1 = add(%mul_1, %exp_1) : f32[]
      return %max, %add_1
    }
    %item = item(%loop_2) {index=0} : f32[]
    %item_1 = item(%loop_2) {index=1} : f32[]
    return %item, %item_1
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
REORDER = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r.1 < 4: i32, %acc_4: f32[], %acc_5: f32[])
    %loop_2 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
        {(%r.0 < 2: i32, %acc: f32[], %acc_1: f32[])
      %mul_2 = mul(%r.0, 4:i32) : i32[]
      %add_1 = add(%mul_2, %r.1) : i32[]
      %load = load(%p0, %i, %add_1) : f32[]
      %max_1 = max(%acc, %load) : f32[]
      %abs_2 = abs(%max_1) : f32[]
      %eq_2 = eq(%abs_2, inf:f32) : bool[]
      %select_2 = select(%eq_2, 0.0:f32, %max_1) : f32[]
      %sub_2 = sub(%acc, %select_2) : f32[]
      %exp_2 = exp(%sub_2) : f32[]
      %mul_3 = mul(%acc_1, %exp_2) : f32[]
      %sub_3 = sub(%load, %select_2) : f32[]
      %exp_3 = exp(%sub_3) : f32[]
      %add_2 = add(%mul_3, %exp_3) : f32[]
      return %max_1, %add_2
    }
    %item = item(%loop_2) {index=0} : f32[]
    %max = max(%acc_4, %item) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_4, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul = mul(%acc_5, %exp) : f32[]
    %item_1 = item(%loop_2) {index=1} : f32[]
    %sub_1 = sub(%item, %select_1) : f32[]
    %exp_1 = exp(%sub_1) : f32[]
    %mul_1 = mul(%item_1, %exp_1) : f32[]
    %add = add(%mul, %mul_1) : f32[]
    return %max, %add
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
BLOCK_BEFORE = """
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(0.0:f32, 0.0:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[], f32[])
      {(%r.0 < 2: i32, %acc_3: f32[], %acc_4: f32[], %acc_5: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %loop_2 = loop(%acc_3, %acc_4, %acc_5) {kind="serial", online=true} : (f32[], f32[], f32[])
        {(%r.1 < 4: i32, %acc: f32[], %acc_1: f32[], %acc_2: f32[])
      %add = add(%mul, %r.1) : i32[]
      %load = load(%p0, %i, %add) : f32[]
      %add_1 = add(%acc, %load) : f32[]
      %add_2 = add(%acc_1, 1.0:f32) : f32[]
      %max = max(%acc_1, 1.0:f32) : f32[]
      %div = div(%acc, %max) : f32[]
      %max_1 = max(%add_2, 1.0:f32) : f32[]
      %div_1 = div(%add_1, %max_1) : f32[]
      %sub = sub(%div, %div_1) : f32[]
      %mul_1 = mul(%sub, %sub) : f32[]
      %mul_2 = mul(%acc_1, %mul_1) : f32[]
      %add_3 = add(%acc_2, %mul_2) : f32[]
      %div_2 = div(%add_1, %add_2) : f32[]
      %sub_1 = sub(%load, %div_2) : f32[]
      %mul_3 = mul(%sub_1, %sub_1) : f32[]
      %add_4 = add(%add_3, %mul_3) : f32[]
      return %add_1, %add_2, %add_4
    }
    %item = item(%loop_2) {index=0} : f32[]
    %item_1 = item(%loop_2) {index=1} : f32[]
    %item_2 = item(%loop_2) {index=2} : f32[]
    return %item, %item_1, %item_2
  }
  %y = item(%loop_1) {index=2} : f32[]
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
"""
BLOCK = """
%mul = mul(1.0:f32, 4.0:f32) : f32[]
%loop = loop(%o0) {kind="serial"} : f32[3] {(%i < 3: i32, %o0_1: f32[3])
  %loop_1 = loop(0.0:f32, 0.0:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[], f32[])
      {(%r.0 < 2: i32, %acc_3: f32[], %acc_4: f32[], %acc_5: f32[])
    %mul_1 = mul(%r.0, 4:i32) : i32[]
    %loop_2 = loop(0.0:f32) {kind="serial"} : f32[] {(%r.1 < 4: i32, %acc_6: f32[])
      %add_4 = add(%mul_1, %r.1) : i32[]
      %load = load(%p0, %i, %add_4) : f32[]
      %add_5 = add(%acc_6, %load) : f32[]
      return %add_5
    }
    %add = add(%acc_3, %loop_2) : f32[]
    %add_1 = add(%acc_4, %mul) : f32[]
    %max = max(%acc_4, 1.0:f32) : f32[]
    %div = div(%acc_3, %max) : f32[]
    %max_1 = max(%add_1, 1.0:f32) : f32[]
    %div_1 = div(%add, %max_1) : f32[]
    %sub = sub(%div, %div_1) : f32[]
    %mul_2 = mul(%sub, %sub) : f32[]
    %mul_3 = mul(%acc_4, %mul_2) : f32[]
    %add_2 = add(%acc_5, %mul_3) : f32[]
    %div_2 = div(%add, %add_1) : f32[]
    %loop_3 = loop(0.0:f32) {kind="serial"} : f32[] {(%r.1 < 4: i32, %acc_7: f32[])
      %add_4 = add(%mul_1, %r.1) : i32[]
      %load = load(%p0, %i, %add_4) : f32[]
      %sub_1 = sub(%load, %div_2) : f32[]
      %mul_4 = mul(%sub_1, %sub_1) : f32[]
      %add_6 = add(%acc_7, %mul_4) : f32[]
      return %add_6
    }
    %add_3 = add(%add_2, %loop_3) : f32[]
    return %add, %add_1, %add_3
  }
  %y = item(%loop_1) {index=2} : f32[]
  %store = store(%o0_1, %y, %i) : f32[3]
  return %store
}
return %loop
"""
EVICT_BEFORE = """
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
  %div = div(%load, %t) : f32<2>
  %store = store(%o0_2, %div, %mul) : f32[6]
  return %store
}
return %loop
"""
EVICT = """
%t = loop(0.0:f32) {kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) {evict="last"} : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(%acc_1, %reduce) : f32[]
  return %add
}
%loop = loop(%o0) {kind="serial"} : f32[6] {(%r.0 < 3: i32, %o0_2: f32[6])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load_1 = load(%p0, %mul) {evict="first"} : f32<2>
  %div = div(%load_1, %t) : f32<2>
  %store = store(%o0_2, %div, %mul) : f32[6]
  return %store
}
return %loop
"""
PIPELINE = """
%t = loop(0.0:f32) {ahead=2, kind="serial"} : f32[] {(%r.0 < 3: i32, %acc_1: f32[])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(%acc_1, %reduce) : f32[]
  return %add
}
%loop = loop(%o0) {kind="serial"} : f32[6] {(%r.0 < 3: i32, %o0_2: f32[6])
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %div = div(%load, %t) : f32<2>
  %store = store(%o0_2, %div, %mul) : f32[6]
  return %store
}
return %loop
"""
HOLD = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<2>
%loop = loop(0:i32, 1:i32, 0.0:f32, %broadcast) {kind="serial", limited=true} : (f32[], f32<2>)
  {(%r.0 < 1: i32, %acc_1: f32[], %held: f32<2>)
  %mul = mul(%r.0, 2:i32) : i32[]
  %load = load(%p0, %mul) : f32<2>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add = add(%acc_1, %reduce) : f32[]
  return %add, %load
}
%item = item(%loop) {index=1} : f32<2>
%item_1 = item(%loop) {index=0} : f32[]
%loop_1 = loop(1:i32, 2:i32, %item_1, %broadcast) {kind="serial", limited=true} : (f32[], f32<2>)
  {(%r.0 < 2: i32, %acc_1: f32[], %held_1: f32<2>)
  %mul_1 = mul(%r.0, 2:i32) : i32[]
  %load_1 = load(%p0, %mul_1) : f32<2>
  %reduce_1 = reduce(%load_1) {axes=[0], kind="sum"} : f32[]
  %add_1 = add(%acc_1, %reduce_1) : f32[]
  return %add_1, %load_1
}
%item_2 = item(%loop_1) {index=0} : f32[]
%loop_2 = loop(2:i32, 3:i32, %item_2, %broadcast) {kind="serial", limited=true} : (f32[], f32<2>)
  {(%r.0 < 3: i32, %acc_1: f32[], %held_2: f32<2>)
  %mul_2 = mul(%r.0, 2:i32) : i32[]
  %load_2 = load(%p0, %mul_2) : f32<2>
  %reduce_2 = reduce(%load_2) {axes=[0], kind="sum"} : f32[]
  %add_2 = add(%acc_1, %reduce_2) : f32[]
  return %add_2, %load_2
}
%t = item(%loop_2) {index=0} : f32[]
%div = div(%item, %t) : f32<2>
%store = store(%o0, %div, 0:i32) : f32[6]
%item_3 = item(%loop_1) {index=1} : f32<2>
%div_1 = div(%item_3, %t) : f32<2>
%store_1 = store(%store, %div_1, 2:i32) : f32[6]
%item_4 = item(%loop_2) {index=1} : f32<2>
%div_2 = div(%item_4, %t) : f32<2>
%store_2 = store(%store_1, %div_2, 4:i32) : f32[6]
return %store_2
"""
# name: (program, steps before, the step, kernel before, kernel after)
CASES = {
    "rfactor": (
        sums(2, 8),
        "split r 4; block r.1; vectorize r.1",
        "rfactor r.0",
        RFACTOR_BEFORE,
        RFACTOR,
    ),
    "reorder": (sums(2, 8), "split r 4", "reorder r.0 r.1", REORDER_BEFORE, REORDER),
    "block": (VARIANCE, "split r 4", "block r.1", BLOCK_BEFORE, BLOCK),
    "evict": (SHARE, "split r 2; vectorize r.1", "evict p0 reuse", EVICT_BEFORE, EVICT),
    "pipeline": (SHARE, "split r 2; vectorize r.1", "pipeline r.0 2", EVICT_BEFORE, PIPELINE),
    "hold": (SHARE, "split r 2; vectorize r.1", "hold r.0 3", EVICT_BEFORE, HOLD),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_expected(name: str) -> None:
    assert not texts_differ(*CASES[name])
