"""Writes one elementary function as MLIR text; `math` lists the functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# adding it leaves the nearest integer in the low bits of the sum
MAGIC = 12582912.0
# functions of two arguments
BINARY_LIBM = ("pow", "atan2", "fmod", "hypot", "nextafter")


class Function(NamedTuple):
    """One instance of a function, such as `exp` over `f32` with 16 lanes; one lane is a scalar."""

    name: str
    element: str
    lanes: int

    @property
    def symbol(self) -> str:
        return f"stack_{self.name}_{self.element}x{self.lanes}"

    @property
    def arity(self) -> int:
        return 2 if self.name.removeprefix("libm_") in BINARY_LIBM else 1


def call(result: str, name: str, element: str, lanes: int, *arguments: str) -> str:
    """The statement that applies a function to values of the given type."""
    f = Function(name, element, lanes)
    t = vector(element, lanes)
    types = ", ".join([t] * len(arguments))
    return f"{result} = llvm.call @{f.symbol}({', '.join(arguments)}) : ({types}) -> {t}"


def vector(element: str, lanes: int) -> str:
    """Returns the text of a vector type of `lanes` elements, or of a scalar for one lane."""
    return element if lanes == 1 else f"vector<{lanes}x{element}>"


def multiply_add(a: str, b: str, c: str, kind: str) -> str:
    """The operation a * b + c, with one rounding on CPUs where that is faster than two.

    `math.fma` always rounds once, if necessary by a C function for each element.
    """
    return f"llvm.intr.fmuladd({a}, {b}, {c}) : ({kind}, {kind}, {kind}) -> {kind}"


def constant(value: float, element: str, lanes: int) -> str:
    """`arith.constant ... : type` with every bit of the value (hex; floats only)."""
    bits = struct.pack(">f" if element == "f32" else ">d", value).hex().upper()
    inner = f"0x{bits}" if lanes == 1 else f"dense<0x{bits}>"
    return f"arith.constant {inner} : {vector(element, lanes)}"


class Body:
    """The text of one function over one type. Methods append statements and return value names."""

    def __init__(self, element: str, lanes: int, scalef: bool) -> None:
        self.element, self.lanes, self.scalef = element, lanes, scalef
        self.type = vector(element, lanes)
        self.bits = vector("i32" if element == "f32" else "i64", lanes)
        self.mask = vector("i1", lanes)
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.uses: list[Function] = []
        self.libm: list[str] = []
        self.result = ""
        self.inline = True

    def function(self, f: Function) -> str:
        params = ", ".join(f"%x{i}: {self.type}" for i in range(f.arity))
        how = "alwaysinline" if self.inline else "noinline"
        lines = "".join(f"  {line}\n" for line in self.lines)
        return (
            f"llvm.func internal @{f.symbol}({params}) -> {self.type} "
            f'attributes {{passthrough = ["{how}"]}} {{\n{lines}'
            f"  llvm.return {self.result} : {self.type}\n}}\n"
        )

    def do(self, text: str) -> str:
        """Append a statement; equal statements (mainly constants) are written once."""
        if text not in self.known:
            self.known[text] = f"%v{len(self.known)}"
            self.lines.append(f"{self.known[text]} = {text}")
        return self.known[text]

    def f(self, value: float | str) -> str:
        if isinstance(value, str):
            return value
        return self.do(constant(value, self.element, self.lanes))

    def i(self, value: int) -> str:
        inner = str(value) if self.lanes == 1 else f"dense<{value}>"
        return self.do(f"arith.constant {inner} : {self.bits}")

    def op(self, name: str, *values: float | str) -> str:
        return self.do(f"{name} {', '.join(self.f(v) for v in values)} : {self.type}")

    def iop(self, name: str, a: str, b: int | str) -> str:
        return self.do(f"arith.{name} {a}, {self.i(b) if isinstance(b, int) else b} : {self.bits}")

    def add(self, a: float | str, b: float | str) -> str:
        return self.op("arith.addf", a, b)

    def sub(self, a: float | str, b: float | str) -> str:
        return self.op("arith.subf", a, b)

    def mul(self, a: float | str, b: float | str) -> str:
        return self.op("arith.mulf", a, b)

    def div(self, a: float | str, b: float | str) -> str:
        return self.op("arith.divf", a, b)

    def fma(self, a: float | str, b: float | str, c: float | str) -> str:
        return self.op("math.fma", a, b, c)

    def compare(self, how: str, a: float | str, b: float | str) -> str:
        return self.op(f"arith.cmpf {how},", a, b)

    def select(self, mask: str, a: float | str, b: float | str) -> str:
        kinds = self.type if self.lanes == 1 else f"{self.mask}, {self.type}"
        return self.do(f"arith.select {mask}, {self.f(a)}, {self.f(b)} : {kinds}")

    def at_least(self, a: str, low: float) -> str:
        """Returns the larger of a and `low`, or nan for nan; on x86 this is one maxps."""
        return self.select(self.compare("olt", a, low), low, a)

    def at_most(self, a: str, high: float) -> str:
        return self.select(self.compare("ogt", a, high), high, a)

    def to_bits(self, a: str) -> str:
        return self.do(f"arith.bitcast {a} : {self.type} to {self.bits}")

    def from_bits(self, a: str) -> str:
        return self.do(f"arith.bitcast {a} : {self.bits} to {self.type}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        acc: float | str = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            acc = self.do(multiply_add(self.f(acc), self.f(x), self.f(c), self.type))
        return self.f(acc)

    def odd(self, x: str, coefficients: Sequence[float]) -> str:
        """x + x s P(s) with s = x x."""
        s = self.mul(x, x)
        return self.fma(self.mul(x, s), self.polynomial(s, coefficients), x)

    def by_type(self, f32: T, f64: T) -> T:
        """Returns the first argument for a function over f32, the second for one over f64."""
        return f32 if self.element == "f32" else f64

    def wide(self, x: str) -> str:
        return self.do(f"arith.extf {x} : {self.type} to {vector('f64', self.lanes)}")

    def narrow(self, x: str) -> str:
        return self.do(f"arith.truncf {x} : {vector('f64', self.lanes)} to {self.type}")

    def of_f64(self) -> Body:
        """Returns a writer that appends f64 statements to the text of this function."""
        wide = Body("f64", self.lanes, False)
        wide.lines, wide.known = self.lines, self.known
        return wide

    def lines_of(self, text: str) -> None:
        self.lines += text.splitlines()
