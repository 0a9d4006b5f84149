"""Inputs of checks have what they are for, and rules that are inexact by design say how far."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, parse
from stack.rewrite import EXACT, WIDER, CheckError, Inexact, Pipeline, on, rewrite
from stack.rewrite.engine import Simple
from stack.rewrite.inputs import KINDS, LEADING, array_of, kinds_for
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.truth import Truth
from stack.testing import check_pass

PRODUCT = """func @f(%x: f32[32], %y: f32[32]) -> (f32[32]) at tensor {
  %a = exp(%x) : f32[32]
  %b = exp(%y) : f32[32]
  %z = mul(%a, %b) : f32[32]
  return %z
}
"""


def one(kind: str, dtype: str = "f32", shape: str = "10, 64") -> np.ndarray:
    func = parse(
        f"func @f(%x: {dtype}[{shape}]) -> ({dtype}[{shape}]) at tensor {{\n  return %x\n}}"
    )
    return array_of(func.params[0].tensor, kind, np.random.default_rng(0))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_kinds_are_what_they_say(dtype: str) -> None:
    with np.errstate(all="ignore"):
        rows = one("rows", dtype)
        assert not rows[0].any() and np.ptp(rows[1]) == np.ptp(rows[3]) == 0
        assert rows[1, 0] < 0 < rows[3, 0] and 0 < np.abs(rows[2]).max() < np.abs(rows[4]).max()
        assert np.isinf(np.exp(one("large", dtype))).any()
        assert (np.exp(one("large", dtype)) < 1e-3).any()
        assert 0 < np.abs(one("tiny", dtype)).max() < 0.02
        assert one("offset", dtype).min() > 10
        assert not one("zeros", dtype).any()
        limits = np.finfo(one("plain", dtype).dtype)
        assert 0 < np.abs(one("denormal", dtype)).max() <= limits.tiny
        assert np.isinf(one("huge", dtype).astype(limits.dtype) ** 3).any()
        double = one("limits", dtype).astype(np.float64) * 2
        assert (np.abs(double) > float(limits.max)).all()
        assert np.isinf(one("infinities", dtype)).sum() == 2
        assert np.isnan(one("nan", dtype)).sum() == 2


def test_integers_have_both_signs_and_their_limits() -> None:
    found = one("integers", "i32")
    assert {np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1, 0, 1} <= set(found.ravel().tolist())
    assert set(one("plain", "i32").ravel().tolist()) == {0, 1}
    assert one("integers", "u8").min() == 0


def of(text: str, params: str = "%x: f32[8, 8]", result: str = "f32[8, 8]") -> Func:
    return parse(f"func @f({params}) -> ({result}) at tensor {{\n  {text}\n  return %z\n}}\n")


def test_kinds_depend_on_the_program() -> None:
    assert set(kinds_for(of("%z = exp(%x) : f32[8, 8]"))) == set(KINDS) - {"integers"}
    total = of('%z = reduce(%x) {axes=[1], kind="sum"} : f32[8]', result="f32[8]")
    assert not {"mixed", "limits"} & set(kinds_for(total))
    product = of('%z = dot(%x, %x) {rule="a b, b c -> a c"} : f32[8, 8]')
    assert "huge" not in kinds_for(product)
    large = of("%z = exp(%x) : f32[512, 512]", "%x: f32[512, 512]", "f32[512, 512]")
    assert kinds_for(large) == LEADING
    whole = of("%z = add(%x, 1:i32) : i32[8, 8]", "%x: i32[8, 8]", "i32[8, 8]")
    assert "integers" in kinds_for(whole)


def test_own_arguments_come_first() -> None:
    func, other = (
        of(f"%z = eq(%x, {v}:f32) : bool[2]", "%x: f32[2]", "bool[2]") for v in (77.5, 9.25)
    )
    assert not Truth(func).problem(other)
    truth = Truth(func, given=[np.array([77.5, 1], np.float32)])
    assert truth.kinds[0] == "given"
    assert truth.problem(other).endswith("(given)")


def checked(rule: Simple) -> None:
    class Own(Pass):
        name = "own"

        def run(self, func: Func, log: Log) -> Func:
            return rewrite(func, (rule,), log)

    func = parse(PRODUCT)
    Pipeline([Own()]).run(func, check=True)
    check_pass(Own(), [func], graphs=False)


def exp_of(inner: str, inexact: Inexact) -> Simple:
    @on("mul", inexact=inexact)
    def rule(node, op, scope):
        x, y = (a.args[0] for a in node.args if a.op == "exp")
        return op.exp(op.op(inner, (x, y)))

    return rule


def test_a_rule_states_that_it_is_inexact() -> None:
    checked(exp_of("add", WIDER))
    with pytest.raises(CheckError, match="large"):
        checked(exp_of("add", EXACT))
    with pytest.raises(CheckError, match="large"):
        checked(exp_of("add", Inexact(error=1e-3)))
    with pytest.raises(CheckError, match="plain"):
        checked(exp_of("sub", WIDER))


@pytest.mark.parametrize(("error", "is_right"), [(1e-3, True), (5e-5, False)])
def test_an_approximation_states_its_error(error: float, is_right: bool) -> None:
    class Near(Pass):
        name = "near"

        def run(self, func: Func, log: Log) -> Func:
            if log.spend("near"):
                log.allow(Inexact(error=error))
                return of("%z = mul(%x, 1.0002:f32) : f32[8, 8]")
            return func

    func = of("%z = mul(%x, 1.0:f32) : f32[8, 8]")
    if is_right:
        assert Pipeline([Near()]).run(func, check=True).records[0].error == pytest.approx(2e-4, 0.1)
    else:
        with pytest.raises(CheckError, match=r"differs by 0\.0002"):
            Pipeline([Near()]).run(func, check=True)
