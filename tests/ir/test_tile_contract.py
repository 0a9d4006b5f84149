"""Kernels at the tile level that break the contract: the error names node, rule and source line."""

from __future__ import annotations

import pytest
from kernel_cases import CASES, group_of, program

from stack.errors import VerifyError
from stack.explore.steps import alone
from stack.ir import parse, verify
from stack.passes.blocks import Blocks
from stack.passes.policies.lowerings import shown_steps
from stack.passes.tile import Tile
from stack.rewrite.log import Log
from stack.target import load

KERNEL = """
func @main(%x: f32[5, 7], %m: bool[7]) -> (f32[5, 7], f32[5]) at tensor {
  %k = kernel(%x, %m) {level="tile", name="k"} : (f32[5, 7], f32[5]) {(%p0: f32[5, 7] in global,
    %p1: bool[7] in global, %o0: f32[5, 7] in global, %o1: f32[5] in global)
    %mask = load(%p1, 0:i64) : bool<7>
    %done = loop(%o0, %o1) {kind="grid"} : (f32[5, 7] in global, f32[5] in global) {(%i < 5,
      %a: f32[5, 7] in global, %b: f32[5] in global)
      %row = load(%p0, %i, 0:i64, %mask, 0.0:f32) : f32<7> from "model.py:3"
      %total = reduce(%row) {axes=[0], kind="sum"} : f32[]
      %grown = loop(%total) {kind="serial"} : f32[] from "model.py:4" {(%t < 3, %acc: f32[])
        %more = add(%acc, %total) : f32[]
        return %more
      }
      %put = store(%a, %row, %i, 0:i64) : f32[5, 7] in global from "model.py:5"
      %end = store(%b, %grown, %i) : f32[5] in global from "model.py:6"
      return %put, %end
    }
    %first = item(%done) {index=0} : f32[5, 7] in global
    %second = item(%done) {index=1} : f32[5] in global
    return %first, %second
  }
  %r0 = item(%k) {index=0} : f32[5, 7]
  %r1 = item(%k) {index=1} : f32[5]
  return %r0, %r1
}
"""
MASK = "%mask = load(%p1, 0:i64) : bool<7>"
ROW = "load(%p0, %i, 0:i64, %mask, 0.0:f32) : f32<7>"
CLIPPED = (
    "%early = lt(%i, 4:i64) : bool[]\n"
    "%row = load(%p0, %i, 0:i64, %early, 0.0:f32) {clip=true} : f32<7>"
)
PUT = "store(%a, %row, %i, 0:i64) : f32[5, 7] in global"

# the parts of the text that change, and what the error tells
BROKEN: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "kind of a loop": (
        {'kind="serial"': 'kind="unroll"'},
        ("model.py:4", "%grown = loop", "of kind grid, serial, branch, not unroll"),
    ),
    "grid loop that carries a value": (
        {'kind="serial"': 'kind="grid"'},
        ("model.py:4", "%grown = loop", "a grid loop carries outputs alone"),
    ),
    "grid loop in a program": (
        {
            f"%put = {PUT}": '%put = loop(%a) {kind="serial"} : f32[5, 7] in global {(%s < 2,'
            " %c: f32[5, 7] in global) %g = loop(%c)"
            ' {kind="grid"} : f32[5, 7] in global from "model.py:9" {(%h < 2,'
            " %d: f32[5, 7] in global) %e = store(%d, %row, %i, 0:i64) : f32[5, 7] in global\n"
            " return %e } return %g }",
            'from "model.py:5"': "",
        },
        ("model.py:9", "%g = loop", "a grid loop is inside of a loop of a program"),
    ),
    "mask of another shape": (
        {MASK: f"{MASK}\n%two = broadcast(true:bool) {{axes=[]}} : bool<2>",
         "%mask, 0.0": "%two, 0.0"},
        ("model.py:3", "%row = load", "its mask is bool<2>, and its elements are f32<7>"),
    ),
    "clip with a mask": (
        {ROW: ROW.replace(") :", ") {clip=true} :")},
        ("model.py:3", "%row = load", "`clip` is for a block without a mask"),
    ),
    "clip with a condition, after step launch": (
        {f"%row = {ROW}": CLIPPED, 'name="k"': 'name="k", warps=4'},
        ("model.py:3", "%row = load", "`clip` is for a block without a mask"),
    ),
    "longer than its memory": (
        {ROW: "load(%p0, %i, %odd) : f32<8>",
         "%row =": "%odd = rem(%i, 2:i64) : i64[]\n%row =",
         PUT: PUT.replace("%row", "%short"),
         "%put =": "%short = broadcast(%total) {axes=[]} : f32<7>\n%put ="},
        ("model.py:3", "%row = load", "8 elements along axis 1 of f32[5, 7] in global, without"),
    ),
    "stores to an input": (
        {"store(%a, %row": "store(%p0, %row"},
        ("model.py:5", "%put = store", "it stores to input %p0"),
    ),
    "two stores to one state": (
        {
            "%put =": f'%lost = {PUT.replace("%i", "0:i64")} from "model.py:8"\n%put =',
            "store(%b, %grown": "store(%b, %read",
            "%end =": "%read = load(%lost, %i, 0:i64) : f32[]\n%end =",
        },
        ("%a, %row", "it stores to memory that another node stores to as well"),
    ),
    "outputs that change places": (
        {"f32[5]": "f32[5, 7]", "store(%b, %grown, %i)": "store(%b, %row, %i, 0:i64)",
         "return %first, %second": "return %second, %first"},
        ("%second = item", "the kernel returns it for output %o0"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_breaks_the_contract_is_named(name: str) -> None:
    changes, told = BROKEN[name]
    verify(parse(KERNEL))
    text = KERNEL
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    for part in told:
        assert part in str(error.value), str(error.value)


def test_a_clipped_block_has_one_condition_while_steps_follow() -> None:
    """Step `launch`, the last one, makes a mask of both."""
    verify(parse(KERNEL.replace(f"%row = {ROW}", CLIPPED)))


@pytest.mark.parametrize("machine", ["avx2", "sm_90"], ids=["exact", "masked"])
def test_kernels_keep_it_after_every_step(machine: str) -> None:
    groups = [n for case in CASES for n in program(group_of(*case)).nodes if n.op == "fusion"]
    made = [kernel for group in groups for _, _, kernel in shown_steps(group, load(machine))]
    for kernel in made:
        verify(alone(kernel))
    assert len(made) > 100


@pytest.mark.parametrize("tiler", [Tile(), Blocks()], ids=["exact", "masked"])
def test_kernels_of_both_policies_keep_it(tiler: Tile | Blocks) -> None:
    made = [tiler.run(program(group_of(*case)), Log()) for case in CASES]
    for func in made:
        verify(func)
    assert sum(n.op == "kernel" for f in made for n in f.nodes) > 30
