from __future__ import annotations

from typing import Any

import stack
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


def _same(before: Func, after: Func) -> bool:
    arrays = random_inputs(before)
    want, have = (f.interpret(*arrays) for f in (before, after))
    return difference(want, have, before.results[0].dtype) == 0.0


def _apply(rule: Any, func: Func) -> tuple[Func, Log]:
    log = Log(verbose=True)
    return rewrite(func, [rule], log), log


def check_refusal(student: Any) -> None:
    """exp_of_log leaves the program, and says why; elsewhere it says nothing"""
    func = _func("%a = log(%x)\n%b = exp(%a)")
    after, log = _apply(student.exp_of_log, func)
    assert after is func, "it rewrote what is not equal"
    assert log.misses, "it gave no Why"
    _, log = _apply(student.exp_of_log, _func("%a = neg(%x)\n%b = exp(%a)"))
    assert not log.misses, "a Why is for near misses only"


def check_idempotent(student: Any) -> None:
    """idempotent drops the second maximum, and only where both constants are one"""
    func = _func("%a = max(%x, %y)\n%b = max(%a, %y)")
    after, _ = _apply(student.idempotent, func)
    assert [n.op for n in after.nodes] == ["max"]
    assert _same(func, after)
    other = _func("%a = max(%x, 1.0:f32)\n%b = max(%a, 2.0:f32)")
    assert _apply(student.idempotent, other)[0] is other, "1.0 is not 2.0"


def check_reassociate(student: Any) -> None:
    """reassociate multiplies constants of integers, and leaves floats alone"""
    func = _func("%a = mul(%x, 3:i32)\n%b = mul(%a, 5:i32)", "i32")
    after, _ = _apply(student.reassociate, func)
    assert [n.op for n in after.nodes if n.op != "const"] == ["mul"]
    assert _same(func, after)
    floats = _func("%a = mul(%x, 3.0:f32)\n%b = mul(%a, 0.1:f32)")
    assert _apply(student.reassociate, floats)[0] is floats, "floats round twice"
