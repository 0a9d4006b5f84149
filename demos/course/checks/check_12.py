from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import stack
from stack.ir import Func
from stack.rewrite import Pass, on, rewrite

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
def _turned(node, op, scope):
    """x + y is y + x: right. A mark keeps it from turning for ever."""
    a, b = node.args
    is_first = str(a.attrs.get("name")) == "x"
    return op.add(b, a) if is_first else None


@on("sub")
def _swapped(node, op, scope):
    """x - y is y - x: wrong."""
    a, b = node.args
    return op.sub(b, a) if a.op == "exp" else None


@dataclass(frozen=True)
class _Rules(Pass):
    """Some rules."""

    name: ClassVar[str] = "planted"
    rules: tuple = ()

    def run(self, func, log):
        return rewrite(func, list(self.rules), log)


def _arrays(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(9)
    return [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]


def check_rewrite(student: Any) -> None:
    """first_wrong_rewrite counts over the whole pipeline"""
    func = stack.parse(PROGRAM)
    for passes, wanted in (
        ([_Rules((_turned,)), _Rules((_swapped,))], 2),
        ([_Rules((_swapped,)), _Rules((_turned,))], 1),
    ):
        found = student.first_wrong_rewrite(passes, func, _arrays(func))
        assert found == wanted, f"it is rewrite {wanted}, not {found}"


def check_innocent(student: Any) -> None:
    """first_wrong_rewrite is 0 where nothing is wrong"""
    func = stack.parse(PROGRAM)
    assert student.first_wrong_rewrite([_Rules((_turned,))], func, _arrays(func)) == 0


def _unary(lines: str) -> Func:
    return stack.parse(f"func @f(%x: f32[4]) -> (f32[4]) at tensor {{\n{lines}\n  return %r\n}}")


def check_telling(student: Any) -> None:
    """telling_input finds nan, infinity and the sign of zero; None for equal functions"""
    plain = _unary("  %a = mul(%x, 1.0:f32) : f32[4]\n  %r = add(%a, 1.0:f32) : f32[4]")
    pairs = (
        # x - x is not 0 of an infinity
        (_unary("  %r = sub(%x, %x) : f32[4]"), _unary("  %r = mul(%x, 0.0:f32) : f32[4]"), False),
        (_unary("  %a = log(%x) : f32[4]\n  %r = exp(%a) : f32[4]"), _unary(
            "  %r = mul(%x, 1.0:f32) : f32[4]"), True),
        (_unary("  %r = add(%x, 0.0:f32) : f32[4]"), _unary(
            "  %r = mul(%x, 1.0:f32) : f32[4]"), True),
    )  # fmt: skip
    for one, other, must in pairs:
        found = student.telling_input(one, other)
        assert found is not None or not must, f"no input distinguishes\n{one}\n{other}"
        if found is not None:
            with np.errstate(all="ignore"):
                want, have = one.interpret(*found), other.interpret(*found)
            one_bits, other_bits = (
                np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in (want, have)
            )
            assert not np.array_equal(one_bits, other_bits), "they agree on this input"
    assert student.telling_input(plain, plain) is None
