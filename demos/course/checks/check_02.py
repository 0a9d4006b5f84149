from __future__ import annotations

from typing import Any

import stack
from stack.demos.course.answers import Wrong, ask
from stack.ir import Func
from stack.rewrite import Log, rewrite
from stack.rewrite.check import difference
from stack.rewrite.inputs import random_inputs


def _func(lines: str, dtype: str = "f32") -> Func:
    kind = f"{dtype}[8]"
    body = "\n".join(f"  {line} : {kind}" for line in lines.splitlines())
    last = lines.splitlines()[-1].split(" ")[0]
    return stack.parse(
        f"func @f(%x: {kind}, %y: {kind}) -> ({kind}) at tensor {{\n{body}\n  return {last}\n}}"
    )


def _rewrites(rule: Any, before: str, after: str, dtype: str = "f32") -> Log:
    """Compares the program after a rule with the wanted one; returns the log of the rewriting."""
    func, wanted, log = _func(before, dtype), _func(after, dtype), Log(verbose=True)
    question = ask(lambda: rewrite(func, [rule], log), given=f"{rule.name} at {_lines(func)}")
    found = question.answer(_lines(wanted))
    if not _same(found, wanted):
        raise question.wrong(_lines(wanted), _lines(found))
    return log


def _same(found: Func, wanted: Func) -> bool:
    """True if two programs have the same ops and the same results on random inputs."""
    ops = [[n.op for n in func.nodes if n.op != "const"] for func in (found, wanted)]
    arrays = random_inputs(wanted)
    have, want = (func.interpret(*arrays) for func in (found, wanted))
    return ops[0] == ops[1] and difference(want, have, wanted.results[0].dtype) == 0.0


def _lines(func: Func) -> str:
    """The lines of a program between its braces, in one line."""
    body = [line.strip() for line in str(func).splitlines()[1:-1]]
    return "; ".join(line.partition(" : ")[0] for line in body)


def check_refusal(student: Any) -> None:
    """exp_of_log leaves the program, and says why; elsewhere it says nothing

    Hint: two returns. `None` if node.args[0].op is not "log", else Why("the reason").
    """
    for lines, wanted in (
        ("%a = log(%x)\n%b = exp(%a)", True),
        ("%a = neg(%x)\n%b = exp(%a)", False),
        ("%a = sqrt(%x)\n%b = exp(%a)", False),
        ("%b = exp(%x)", False),
    ):
        reasons = [miss.reason for miss in _rewrites(student.exp_of_log, lines, lines).misses]
        if [bool(reason) for reason in reasons] != [True] * wanted:
            expected = 'Why("a reason")' if wanted else "None: this is no exp of a log"
            found = ", ".join(f"Why({reason!r})" for reason in reasons) or "None"
            raise Wrong(f"exp_of_log at {_lines(_func(lines))}", expected, found)


def check_idempotent(student: Any) -> None:
    """idempotent drops the second maximum if both have one c, which need not be a constant

    Hint: x, c = node.args. Equal nodes are one object, so compare x.args[1] with c by `is`: as
    numbers -0.0 equals 0.0, and nan does not equal nan.
    """
    rule = student.idempotent
    _rewrites(rule, "%a = max(%x, %y)\n%b = max(%a, %y)", "%a = max(%x, %y)")
    for c in ("1.0", "-0.0", "nan"):
        _rewrites(rule, f"%a = max(%x, {c}:f32)\n%b = max(%a, {c}:f32)", f"%a = max(%x, {c}:f32)")
    for other in (
        "%a = max(%x, -0.0:f32)\n%b = max(%a, 0.0:f32)",  # differs from max(x, -0.0) at x = -1
        "%a = max(%x, 1.0:f32)\n%b = max(%a, 2.0:f32)",
        "%a = min(%x, %y)\n%b = max(%a, %y)",
    ):
        _rewrites(rule, other, other)


def check_reassociate(student: Any) -> None:
    """reassociate multiplies constants of integers, and leaves floats and other values alone

    Hint: node.dtype.is_integer tells whether to go on; splat(value) is None for a value that is no
    constant.
    """
    rule = student.reassociate
    for kind in ("i32", "i64"):
        before = f"%a = mul(%x, 3:{kind})\n%b = mul(%a, 5:{kind})"
        _rewrites(rule, before, f"%a = mul(%x, 15:{kind})", kind)
    _rewrites(rule, "%a = mul(%x, 3:i32)\n%b = mul(%a, 0:i32)", "%a = mul(%x, 0:i32)", "i32")
    for other, dtype in (
        ("%a = mul(%x, 3.0:f32)\n%b = mul(%a, 0.1:f32)", "f32"),
        ("%a = mul(%x, 3.0:f64)\n%b = mul(%a, 0.1:f64)", "f64"),
        ("%a = mul(%x, 3:i32)\n%b = mul(%a, %y)", "i32"),
        ("%a = mul(%x, %y)\n%b = mul(%a, 5:i32)", "i32"),
        ("%a = add(%x, 3:i32)\n%b = mul(%a, 5:i32)", "i32"),
    ):
        _rewrites(rule, other, other, dtype)
