from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

import stack
from stack.demos.course.answers import ask, show
from stack.ir import Func
from stack.rewrite import Pass, Pipeline, on, rewrite

PROGRAM = """
func @f(%x: f32[4, 8], %y: f32[4, 8]) -> (f32[4, 8]) at tensor {
  %a = add(%x, %y) : f32[4, 8]
  %b = sub(%a, %y) : f32[4, 8]
  %c = exp(%b) : f32[4, 8]
  %d = sub(%c, %x) : f32[4, 8]
  return %d
}
"""


@on("add")
def _swap_sum(node, op, scope):
    """x + y is y + x: right. It applies once, where the first operand is parameter x."""
    a, b = node.args
    return op.add(b, a) if str(a.attrs.get("name")) == "x" else None


@on("sub")
def _swap_difference(node, op, scope):
    """x - y is y - x: wrong."""
    a, b = node.args
    return op.sub(b, a) if a.op == "exp" else None


@on("sub")
def _cancel(node, op, scope):
    """(x + y) - y is x: right but for rounding."""
    a, b = node.args
    return a.args[0] if a.op == "add" and a.args[1] is b else None


@on("neg")
def _double_negation(node, op, scope):
    """-(-x) is x: right."""
    (x,) = node.args
    return x.args[0] if x.op == "neg" else None


@dataclass(frozen=True)
class _Rules(Pass):
    """Some rules; counts how often it runs."""

    name: ClassVar[str] = "planted"
    rules: tuple = ()
    runs: list[int] = field(default_factory=list, hash=False, compare=False)

    def run(self, func, log):
        self.runs.append(1)
        return rewrite(func, list(self.rules), log)


def _arrays(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(9)
    return [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]


def _question(student: Any, passes: list[_Rules], number: float | None = None) -> Any:
    """Asks for the wrong rewrite of the program. `number` is the first one of both arrays."""
    func = stack.parse(PROGRAM)
    arrays = _arrays(func)
    if number is not None:
        for array in arrays:
            array[0, 0] = number
    rules = [[rule.name.strip("_") for rule in p.rules] for p in passes]
    of = "" if number is None else f" whose first numbers are {number}"
    given = f"passes with the rules {rules}, exp((x + y) - y) - x, arrays{of}"
    return ask(student.first_wrong_rewrite, passes, func, arrays, given=given)


def check_rewrite(student: Any) -> None:
    """first_wrong_rewrite counts over the whole pipeline

    Hint: with fuel=n the first n rewrites happen. Find the least n at which the result differs.
    """
    right, wrong = _Rules((_swap_sum,)), _Rules((_swap_difference,))
    _question(student, [right, wrong]).equals(2)
    _question(student, [wrong, right]).equals(1)
    _question(student, [_Rules((_cancel,)), wrong]).equals(2)


def check_innocent(student: Any) -> None:
    """first_wrong_rewrite is 0 where nothing is wrong

    Hint: compare after all rewrites first. If that is right, return 0. np.allclose has tolerances,
    and equal_nan.
    """
    _question(student, [_Rules((_swap_sum,))]).equals(0)
    _question(student, [_Rules((_double_negation,))]).equals(0)  # no rewrite at all
    _question(student, [_Rules((_cancel,))]).equals(0)
    _question(student, [_Rules((_swap_sum,))], np.nan).equals(0)


def check_halving(student: Any) -> None:
    """first_wrong_rewrite halves: 126 rewrites need about 8 runs, not 126

    Hint: keep low, where the result is right, and high, where it is wrong. Try the middle, until
    high - low is 1.
    """
    for before, after in ((124, 2), (44, 82)):
        lines = [*_negations("b", "%x", before), f"%c = exp(%b{before})", "%a0 = sub(%c, %x)"]
        lines += _negations("a", "%a0", after)
        body = "\n".join(f"  {line} : f32[4]" for line in lines)
        func = stack.parse(
            f"func @f(%x: f32[4]) -> (f32[4]) at tensor {{\n{body}\n  return %a{after}\n}}"
        )
        rules = _Rules((_double_negation, _swap_difference))
        records = Pipeline([rules]).run(func).records
        applied = [rewrite.rule for record in records for rewrite in record.rewrites]
        rules.runs.clear()
        wrong = 1 + applied.index(_swap_difference.name)
        given = f"a pass with {len(applied)} rewrites, {wrong} of them until the result is wrong"
        question = ask(student.first_wrong_rewrite, [rules], func, _arrays(func), given=given)
        question.equals(wrong)
        most = 2 * len(applied).bit_length()
        if len(rules.runs) > most:
            raise question.wrong(f"at most {most} runs of the pass", f"{len(rules.runs)} runs")


def _negations(name: str, start: str, count: int) -> list[str]:
    """Lines that negate a value `count` times."""
    values = [start, *(f"%{name}{n}" for n in range(1, count + 1))]
    return [f"{new} = neg({old})" for old, new in pairwise(values)]


def _function(lines: str) -> Func:
    """A function of two parameters; its lines use one of them."""
    kind = "f32[2, 3]" if "%y" in lines else "f32[4]"
    body = "\n".join(f"  {line} : {kind}" for line in lines.split("; "))
    head = f"func @f(%x: f32[4], %y: f32[2, 3]) -> ({kind}) at tensor"
    return stack.parse(f"{head} {{\n{body}\n  return %r\n}}")


def check_telling(student: Any) -> None:
    """telling_input finds nan, infinity and the sign of zero; None for equal functions

    Hint: go through a list of special numbers: 0.0, -0.0, 1, -1, inf, -inf, nan, 3e38, 1e-38, 88,
    -104. Results differ also if one is 0.0 and the other -0.0: see np.signbit.
    """
    same = "%r = mul(%x, 1.0:f32)"
    for one, other in (
        ("%r = sub(%x, %x)", "%r = mul(%x, 0.0:f32)"),  # 0 and -0 of -1
        ("%a = log(%x); %r = exp(%a)", same),  # nan of -1
        ("%r = add(%x, 0.0:f32)", same),  # 0 and -0 of -0
        ("%r = add(%y, 0.0:f32)", "%r = mul(%y, 1.0:f32)"),
        ("%a = mul(%x, %x); %r = sqrt(%a)", "%r = abs(%x)"),  # inf of 3e38
        (same, same),
    ):
        functions = _function(one), _function(other)
        given = f"`{one}`, `{other}`, of x: f32[4] and y: f32[2, 3]"
        question = ask(student.telling_input, *functions, given=given)
        equal = one == other
        expected = "None" if equal else "arrays on which they differ"
        found = question.answer(expected)
        if equal or found is None:
            if equal != (found is None):
                raise question.wrong(expected, found)
            continue
        call = lambda arrays=found, both=functions: [np.asarray(f.interpret(*arrays)) for f in both]
        with np.errstate(all="ignore"):
            values = ask(
                call, given=f"the functions of {show(found)}, from {question.given}"
            ).answer("a list with one f32 array for each parameter")
        bits = [np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in values]
        if np.array_equal(bits[0], bits[1]):
            raise question.wrong(expected, f"{found[0]}, on which both give {values[0]}")
