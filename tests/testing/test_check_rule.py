"""A rule is checked on programs that are found for it: wrong ones get a small counterexample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wrong_rules
from wrong_rules import INTEGERS

from stack.cli import main
from stack.ir import parse
from stack.ir.types import DTYPES
from stack.rewrite import FINITE, WIDER
from stack.rewrite.engine import Rule, Simple
from stack.rewrite.truth import interpreted
from stack.testing.rules import check_rule
from stack.testing.rules.named import rules_named
from stack.testing.rules.ordinals import from_ordinals, ordinals, ulps
from stack.testing.rules.values import every_value, special_values

HERE = Path(__file__).parent
SLIPS = HERE.parent / "faults/slips.py"
FILE = HERE / "wrong_rules.py"


def differs(rule: Rule, exact: bool = False) -> tuple[float, ...]:
    """The inputs of the counterexample, which is evaluated again."""
    wrong = check_rule(rule, exact=exact).wrong
    assert wrong is not None and wrong.after is not None
    before, after = (interpreted(f, wrong.inputs)[0] for f in (wrong.before, wrong.after))
    assert not np.array_equal(before, after) or (np.signbit(before) != np.signbit(after)).any()
    assert "before:" in str(wrong) and "after:" in str(wrong)
    return tuple(a.item() for a in wrong.inputs) if wrong.inputs[0].size == 1 else ()


@pytest.mark.parametrize("rule", INTEGERS, ids=lambda r: r.name)
def test_integers_and_bools(rule: Simple) -> None:
    found = differs(rule)
    assert len(found) == len(INTEGERS[rule])
    # no counterexample is shorter: its values are at most as large
    assert sum(map(abs, found)) <= sum(map(abs, INTEGERS[rule])), found


@pytest.mark.parametrize("rule", rules_named(str(SLIPS)), ids=lambda r: r.name)
@pytest.mark.slow
def test_every_slip_is_caught(rule: Simple) -> None:
    assert check_rule(rule).verdict == "wrong"


@pytest.mark.parametrize(
    "name",
    [
        *("exp_sum", "cancelled", "quotient_of_equals", "times_zero", "root_of_square"),
        *("wrong_broadcast", "square_transpose", "off_by_one", "negated_comparison", "strict"),
    ],
)
def test_floats_and_axes(name: str) -> None:
    (rule,) = rules_named(f"{SLIPS}:{name}")
    differs(rule)


def test_signs_of_zeros_matter_on_demand() -> None:
    for rule in (wrong_rules.plus_zero, wrong_rules.maximum_of_zero):
        assert check_rule(rule, programs=2).verdict == "agrees"
        (x,) = differs(rule, exact=True)
        assert x == 0 and np.signbit(x)


def test_what_is_true_of_integers_only() -> None:
    proof = check_rule(wrong_rules.difference_of_one, programs=8)
    assert (proof.verdict, proof.error) == ("agrees", 0)
    assert proof.complete and {"i8", "u8"} <= set(proof.types)
    assert proof.inputs > 65536


def test_the_largest_error_is_searched_for() -> None:
    (x,) = differs(wrong_rules.lost_digits)
    assert 0 < abs(x) < 0.2
    proof = check_rule(wrong_rules.other_base, programs=2)
    assert proof.verdict == "agrees" and 20 < proof.error < 300
    assert proof.worst is not None and abs(proof.worst.inputs[0].item()) > 40


def test_a_rule_may_state_how_far_it_goes() -> None:
    (rule,) = rules_named(f"{SLIPS}:exp_sum")
    assert isinstance(rule, Simple)
    assert check_rule(rule).verdict == "wrong"
    wrong = check_rule(replace(rule, inexact=WIDER), programs=2).wrong
    assert wrong is not None and any(np.isinf(a).any() for a in wrong.inputs)
    proof = check_rule(replace(rule, inexact=WIDER | FINITE), programs=2)
    assert proof.verdict == "agrees", str(proof.wrong)


def test_rules_that_raise_or_change_the_type() -> None:
    proof = check_rule(wrong_rules.other_shape)
    assert proof.wrong is not None and "replaces" in str(proof.wrong)
    proof = check_rule(wrong_rules.crashes)
    assert proof.wrong is not None and "IndexError" in str(proof.wrong)


def test_a_program_may_be_given() -> None:
    text = """func @f(%x: f32[4], %y: f32[4]) -> (f32[4]) at tensor {
  %a = add(%x, %y) : f32[4]
  %z = sub(%a, %y) : f32[4]
  return %z
}
"""
    (rule,) = rules_named(f"{SLIPS}:cancelled")
    assert check_rule(rule, tries=0).verdict == "not reached"
    proof = check_rule(rule, [parse(text)], tries=0)
    assert proof.wrong is not None and len(proof.wrong.inputs) == 2


@pytest.mark.parametrize(
    "name",
    [
        *("neutral", "absorbing", "divide_by_power_of_two", "twice", "idempotent", "cancels"),
        *("compares_itself", "chosen", "cast_of_cast", "times_minus_one", "same_operands"),
    ],
)
def test_rules_of_canonicalize_keep_every_bit(name: str) -> None:
    (rule,) = rules_named(f"canonicalize:{name}")
    proof = check_rule(rule, exact=True, tries=1000, programs=5)
    assert (proof.verdict, proof.error) == ("agrees", 0), str(proof.wrong)


@pytest.mark.parametrize("name", ["small_power", "one_plus_tanh"])
def test_rules_of_decompose_round(name: str) -> None:
    (rule,) = rules_named(f"decompose:{name}")
    proof = check_rule(rule, programs=10)
    assert proof.verdict == "agrees", str(proof.wrong)
    assert proof.error > 0


def test_values_of_types() -> None:
    for name in ("f16", "bf16"):
        dtype, values = DTYPES[name], every_value(DTYPES[name])
        assert values is not None and 60_000 < len(values) <= 1 << 16
        finite = values[np.isfinite(values)]
        assert np.array_equal(from_ordinals(ordinals(finite, dtype), dtype), finite)
    assert every_value(DTYPES["f32"]) is None and every_value(DTYPES["f64"]) is None
    for name in ("f32", "f64", "i32", "u8", "bool"):
        assert len(special_values(DTYPES[name])) > 1
    one = np.float32(1)
    near = np.nextafter(one, np.float32(2))
    assert ulps(np.asarray(one), np.asarray(near), DTYPES["f32"]) == 1
    assert ulps(np.asarray(-0.0), np.asarray(0.0), DTYPES["f64"]) == 0
    assert np.isinf(ulps(np.asarray(np.nan), np.asarray(one), DTYPES["f32"]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-rule", f"{FILE}:de_morgan"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and "%x = " in out and "before: " in out and "wrong_rules.py:" in out
    assert main(["check-rule", "canonicalize:twice", "--programs", "2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rules"]
    assert row["verdict"] == "agrees" and row["inputs"] > 256
    assert main(["check-rule", f"{FILE}:nothing"]) == 2
    assert "has no rewrite rule" in capsys.readouterr().err
    assert main(["check-rule", "schedule"]) == 2
    assert "no rewrite rules" in capsys.readouterr().err
    path = tmp_path / "two.py"
    path.write_text(
        "from stack.rewrite import on\n\n\n"
        '@on("add")\ndef swapped(node, op, scope):\n'
        '    """x + y is y + x."""\n    return op.add(*node.args[::-1])\n\n\n'
        '@on("sub")\ndef turned(node, op, scope):\n    return op.sub(*node.args[::-1])\n'
    )
    assert main(["check-rule", str(path), "--tries", "200", "--programs", "4"]) == 1
    out = capsys.readouterr().out
    assert "swapped" in out and "agrees" in out and "wrong" in out
