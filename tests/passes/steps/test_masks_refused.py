"""Steps bound, branch, assume and window: what they refuse, and masks that are not of positions."""

from __future__ import annotations

import numpy as np
import pytest
from masked_nests import BOTH, CAUSAL, GIVEN, LENGTH, TILES, nest, rows, total
from nest_cases import around, gpu_nest, results

from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.target import as_cpu, as_gpu, load

NO_BLOCKS = "no comparison of positions hides blocks of r.0"
NO_MASK = "no mask in a loop over r.0 can be tested for a whole tile"
NO_NUMBER = "no large negative mask of positions hides blocks of r.0"
# blocks of two keys that begin before the first key, and blocks of what data tells
NEGATIVE = (
    "i32{m}",
    "%g = sub(%j, 3:i32) : i32{s}; %h = div(%g, 2:i32) : i32{s}; " + LENGTH[1].replace("%j", "%h"),
)
QUOTIENT = (
    "i32{m}",
    "%n = broadcast(%b) {axes=[0]} : i32{s}; %g = mul(%j, %n) : i32{s}; "
    "%h = div(%g, 2:i32) : i32{s}; %t = ge(%h, %i) : bool{s}",
)
SUM = "split i 4; split r 4; vectorize r.1; vectorize i.1"  # tiles of `total`

# program, steps, the step that is refused, and what its message says
REFUSED = {
    "bound: no such axis": (total(CAUSAL), "bound q", "no loop over 'q'"),
    "bound: another word": (total(CAUSAL), f"{SUM}; bound r.0 all", "`cut` or nothing, not 'all'"),
    "bound: twice": (total(CAUSAL), f"{SUM}; bound r.0; bound r.0", "has no limits yet"),
    "bound: no totals": (total(CAUSAL), f"{SUM}; bound i.0", "no loop over i.0 is online"),
    "bound: a given mask": (rows(GIVEN, 8, 8), f"{TILES}; bound r.0", NO_BLOCKS),
    "bound: more than positions": (
        rows(BOTH, 8, 8),
        f"{TILES}; bound r.0 cut",
        "axis r.0: more than a comparison of positions hides elements",
    ),
    "bound: quotients of what is negative": (
        rows(NEGATIVE, 8, 8),
        f"{TILES}; bound r.0",
        NO_BLOCKS,
    ),
    "bound: quotients of data": (rows(QUOTIENT, 8, 8), f"{TILES}; bound r.0", NO_BLOCKS),
    "branch: no totals": (total(CAUSAL), f"{SUM}; branch i.0", "no loop over i.0 is online"),
    "branch: one row": (
        rows(CAUSAL, 8, 8),
        "split r 4; block r.1; vectorize r.1; branch r.0",
        NO_MASK,
    ),
    "branch: a given mask": (rows(GIVEN, 8, 8), f"{TILES}; branch r.0", NO_MASK),
    "branch: lengths": (rows(LENGTH, 8, 8), f"{TILES}; branch r.0", NO_MASK),
    "assume: -inf": (rows(CAUSAL, 8, 8), f"{TILES}; assume r.0", NO_NUMBER),
    "assume: no online loop": (total(CAUSAL, fill="-1e9"), f"{SUM}; assume r.0", NO_NUMBER),
    "assume: a given mask": (rows(GIVEN, 8, 8, "-1e9"), f"{TILES}; assume r.0", NO_NUMBER),
    "assume: a small number": (rows(CAUSAL, 8, 8, "-1000.0"), f"{TILES}; assume r.0", NO_NUMBER),
    "assume: scalars": (rows(CAUSAL, 8, 8, "-1e9"), "split r 4; assume r.0", NO_NUMBER),
    "assume: twice": (
        rows(CAUSAL, 8, 8, "-1e9"),
        f"{TILES}; assume r.0; bound r.0; bound r.0",
        "has no limits yet",
    ),
    "window: no such memory": (total(CAUSAL), "window p9", "no memory 'p9'"),
    "window: no table": (total(CAUSAL), f"{SUM}; window p0", "no tile reads short runs of p0"),
    "reverse: no such axis": (total(CAUSAL), "reverse q", "no loop over 'q'"),
    "reverse: rescaled": (rows(CAUSAL), "reverse r", "rescales what it carries"),
    "reverse: limited": (total(CAUSAL), f"{SUM}; bound r.0; reverse r.0", "axis r.0 is bound"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, text, message = REFUSED[name]
    steps = parse_steps(text)
    with pytest.raises(IllegalStep) as found:
        run_steps(gpu_nest(program), steps, as_gpu(load("sm_90")))
    assert message in str(found.value) and found.value.number == len(steps)


@pytest.mark.parametrize("step", ["branch r", "window p0", "evict p0 reuse"])
def test_steps_for_gpus(step: str) -> None:
    (made,) = parse_steps(step)
    assert "is for GPUs" in made.why_not(gpu_nest(total(CAUSAL)), as_cpu(None))


NEAR = {
    "a half": (CAUSAL, "0.5"),
    "zero before the exponential": (CAUSAL, "0.0"),
    "a small negative number": (CAUSAL, "-9.0"),
    "infinity": (CAUSAL, "inf"),
    "a product of positions": ("%h = mul(%i, %j) : i32{s}; %t = gt(%h, 20:i32) : bool{s}", "-inf"),
    "a square": ("%h = mul(%j, %j) : i32{s}; %t = gt(%h, 20:i32) : bool{s}", "-inf"),
    "a remainder": (
        "%h = rem(%j, 3:i32) : i32{s}; %t = ne(%h, 0:i32) : bool{s}",
        "-inf",
    ),
    "both of two": (
        "%a1 = gt(%j, %i) : bool{s}; %a2 = lt(%j, 5:i32) : bool{s}; %t = and(%a1, %a2) : bool{s}",
        "-inf",
    ),
    "rows alone": ("%t = gt(%i, 3:i32) : bool{s}", "-inf"),
    "equal positions": ("%t = ne(%j, %i) : bool{s}", "-inf"),
    "a minimum of positions": (
        "%h = min(%i, 5:i32) : i32{s}; %g = min(%j, %h) : i32{s}; %t = lt(%g, %i) : bool{s}",
        "-inf",
    ),
    "floats": (
        "%p = cast(%i) : f32{s}; %k = cast(%j) : f32{s}; %t = gt(%k, %p) : bool{s}",
        "-inf",
    ),
    "a product that wraps": (
        "%h = mul(%j, 1073741824:i32) : i32{s}; %t = gt(%h, %i) : bool{s}",
        "-inf",
    ),
    "a sum that wraps": (
        "%h = add(%j, 2147483640:i32) : i32{s}; %t = gt(%h, %i) : bool{s}",
        "-inf",
    ),
    "a difference below 0": (
        "%p = cast(%i) : u32{s}; %k = cast(%j) : u32{s}; %h = sub(%p, %k) : u32{s}; "
        "%t = ge(%h, 5:u32) : bool{s}",
        "-inf",
    ),
    "8 bits that wrap": (
        "%p = cast(%i) : i8{s}; %k = cast(%j) : i8{s}; %h = mul(%k, 20:i8) : i8{s}; "
        "%t = gt(%h, %p) : bool{s}",
        "-inf",
    ),
    "a conversion to 8 bits that wraps": (
        "%p = cast(%i) : i8{s}; %h = mul(%j, 20:i32) : i32{s}; %k = cast(%h) : i8{s}; "
        "%t = gt(%k, %p) : bool{s}",
        "-inf",
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """`bound` refuses them; other steps keep their values."""
    mask, fill = NEAR[name]
    func, before = nest(rows(mask, 12, 12, fill))
    made = run_steps(before, parse_steps(TILES))
    for text in ("bound r.0", "bound r.0 where=cut", "assume r.0"):
        (step,) = parse_steps(text)
        assert step.why_not(made), text
    (branch,) = parse_steps("branch r.0")
    made = made if branch.why_not(made) else branch.apply(made)
    array = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    for got, want in zip(results(around(made), [array]), results(func, [array]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_8_bits_that_do_not_wrap() -> None:
    mask = "%p = cast(%i) : i8{s}; %k = cast(%j) : i8{s}; %t = gt(%k, %p) : bool{s}"
    _, before = nest(rows(mask, 12, 12), TILES)
    assert not parse_steps("bound r.0 where=cut")[0].why_not(before)


UNSHARED = '  %s = reduce(%a) {axes=[1], kind="sum"} : f32{m}\n'


def test_a_sum_of_all_elements_beside_the_masked_one() -> None:
    """Apart, the masked sum has limits; a loop that computes both has none."""
    program = total(CAUSAL, more=UNSHARED, results="%y: f32{m}; %s: f32{m}")
    bound, branch = parse_steps("bound r.0; branch r.0")
    apart = gpu_nest(program, SUM)
    assert not bound.why_not(apart) and not branch.why_not(apart)
    both = run_steps(apart, parse_steps("compute_with r.0"))
    assert NO_BLOCKS in bound.why_not(both) and NO_MASK in branch.why_not(both)
    array = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    want = results(around(apart), [array])
    for got, wanted in zip(results(around(bound.apply(apart)), [array]), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
