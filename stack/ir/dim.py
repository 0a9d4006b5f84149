"""Sizes and index expressions: an `int`, or a polynomial over symbols with known bounds.

One class serves both: a symbolic size is a polynomial over size symbols, an index map is a tuple of
polynomials over loop symbols. Polynomials have a canonical form, so `==` is structural equality.
Comparisons return True, False or None (unknown).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd

from stack.errors import SymbolicSize

INF = 1 << 62  # as a bound: unknown
MAX_TERMS, MAX_FACTORS = 512, 32  # far above the sizes of real programs
# words with another meaning where the IR text expects a size
RESERVED = frozenset({"true", "false", "none", "type", "data", "min", "max", "inf", "nan"})
_cached = lru_cache(maxsize=1 << 16)


@dataclass(frozen=True)
class Symbol:
    """A named unknown integer with `low <= value <= high`, divisible by `multiple`."""

    name: str
    low: int = 1
    high: int = INF
    multiple: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """An atom `floor(num / den)` or `num mod den` that did not simplify."""

    kind: str  # "//" or "%"
    num: Dim
    den: Dim

    def __str__(self) -> str:
        # no spaces around "//", because "// " starts a comment; spaces around "%": "%n" is a value
        mark = self.kind if self.kind == "//" else f" {self.kind} "
        return f"({_wrap(self.num)}{mark}{_wrap(self.den)})"


@dataclass(frozen=True)
class Extremum:
    """An atom `max(a, b)` or `min(a, b)` that did not simplify."""

    kind: str  # "max" or "min"
    a: Dim
    b: Dim

    def __str__(self) -> str:
        return f"{self.kind}({self.a}, {self.b})"


Atom = Symbol | Quotient | Extremum
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Expr:
    """Sum of `coefficient * product of atoms`, terms sorted, no zero coefficient."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        return add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return mul(self, -1)

    def __sub__(self, other: Dim) -> Dim:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return add(other, mul(self, -1))

    def __mul__(self, other: Dim) -> Dim:
        return mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise SymbolicSize(
            f"the truth of the symbolic size {self} is not known; use equal(), less_equal() or"
            " divides(), which return True, False or None"
        )

    def __index__(self) -> int:
        raise SymbolicSize(f"the size {self} is symbolic; bind its symbols first (Func.bind)")

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [str(atom) for atom in monomial]
            size = abs(coefficient)
            if size != 1 or not factors:
                factors.insert(0, str(size))
            term = "*".join(factors)
            if not text:
                text = f"-{term}" if coefficient < 0 else term
            else:
                text += f" - {term}" if coefficient < 0 else f" + {term}"
        return text

    __repr__ = __str__


Dim = int | Expr


def _wrap(dim: Dim) -> str:
    text = str(dim)
    return text if text.replace("_", "a").isalnum() else f"({text})"


def symbol(name: str, low: int = 1, high: int = INF, multiple: int = 1) -> Expr:
    """Returns a size expression that is one symbol. Raises ValueError if the name is invalid or no
    number is in the range and divisible by `multiple`.
    """
    if not re.fullmatch(r"[^\W\d]\w*", name) or name in RESERVED:
        raise ValueError(f"{name!r} is not a size name: a letter, then letters, digits and _")
    if multiple < 1 or low > high or high // multiple * multiple < low:
        raise ValueError(f"the size {name!r} has no value: {low}..{high}, multiple of {multiple}")
    return Expr((((Symbol(name, low, high, multiple),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), dim),) if dim else ()


@_cached
def _sort_key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), tuple(str(atom) for atom in monomial))


def _collect(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    for monomial, coefficient in kept:
        if len(monomial) == 1 and isinstance(monomial[0], Quotient) and monomial[0].kind == "%":
            whole = _whole(total, monomial[0], coefficient)
            if whole is not None:
                return _collect(whole)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > MAX_TERMS:
        raise OverflowError(f"a size expression may have {MAX_TERMS} terms, not {len(kept)}")
    kept.sort(key=lambda term: _sort_key(term[0]))
    return Expr(tuple(kept))


def _whole(
    total: dict[Monomial, int], rest: Quotient, coefficient: int
) -> list[tuple[Monomial, int]] | None:
    """Simplifies `coefficient * (a % n + n * (a // n))` to `coefficient * a` in a sum and returns
    the terms. `rest` is the atom `a % n`; returns None if the sum lacks the matching `a // n`.
    """
    other: Monomial = (Quotient("//", rest.num, rest.den),)
    if not isinstance(rest.den, int) or total.get(other) != coefficient * rest.den:
        return None
    left = [(m, c) for m, c in total.items() if m not in ((rest,), other)]
    return [*left, *((m, c * coefficient) for m, c in _terms(rest.num))]


def add(a: Dim, b: Dim) -> Dim:
    """`a + b` in canonical form."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _collect([*_terms(a), *_terms(b)])


def mul(a: Dim, b: Dim) -> Dim:
    """`a * b` in canonical form."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    left, right = _terms(a), _terms(b)
    if len(left) * len(right) > MAX_TERMS * 8:
        raise OverflowError(f"a size expression may have {MAX_TERMS} terms")
    out: list[tuple[Monomial, int]] = []
    for m1, c1 in left:
        for m2, c2 in right:
            if len(m1) + len(m2) > MAX_FACTORS:
                raise OverflowError(f"a term of a size may have {MAX_FACTORS} factors")
            out.append((tuple(sorted(m1 + m2, key=str)) if m1 and m2 else m1 or m2, c1 * c2))
    return _collect(out)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of sizes; 1 for an empty list."""
    if all([isinstance(dim, int) for dim in dims]):
        return math.prod(dims)  # pyright: ignore[reportCallIssue, reportArgumentType]
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def _exact_quotient(monomial: Monomial, coefficient: int, den: Expr) -> tuple[Monomial, int] | None:
    """Divides one term of a size expression by `den`. Returns None if `den` has several terms or
    does not divide the term.
    """
    if len(den.terms) != 1:
        return None
    factors, size = den.terms[0]
    rest = list(monomial)
    for atom in factors:
        if atom not in rest:
            return None
        rest.remove(atom)
    return None if coefficient % size else (tuple(rest), coefficient // size)


def _split(num: Dim, den: Dim) -> tuple[Dim, Dim]:
    """Divides a size expression by `den`: returns (quotient, rest) with `num = quotient * den +
    rest`. By a number, each coefficient is divided with remainder; by an expression, the quotient
    gets the terms that divide exactly.
    """
    if num == den:
        return 1, 0
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in _terms(num):
        if isinstance(den, int):
            # the constant leaves a nonnegative rest, other terms keep their sign
            part = coefficient // den
            if monomial and coefficient < 0:
                part = -(-coefficient // den)
            whole.append((monomial, part))
            rest.append((monomial, coefficient - part * den))
            continue
        exact = _exact_quotient(monomial, coefficient, den)
        if exact is None:
            rest.append((monomial, coefficient))
        else:
            whole.append(exact)
    return _collect(whole), _collect(rest)


def _check_divisor(num: Dim, den: Dim, mark: str) -> None:
    if isinstance(den, int) and den < 1:
        kind = ValueError if den else ZeroDivisionError
        raise kind(f"{num} {mark} {den}: sizes are divided by positive numbers only")


def floordiv(num: Dim, den: Dim) -> Dim:
    """`floor(num / den)`, `den > 0`, simplified by exact terms and by bounds."""
    _check_divisor(num, den, "//")
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    if den == 1:
        return num
    whole, rest = _split(num, den)
    if isinstance(rest, Expr) and isinstance(den, int):
        rest, den = _reduce(rest, den)
        if den == 1:
            return add(whole, rest)
    known = _known_quotient(rest, den)
    if known is not None:
        return add(whole, known)
    inner = _single_atom(rest)
    if isinstance(inner, Quotient) and inner.kind == "//" and isinstance(den, int):
        if isinstance(inner.den, int):
            return add(whole, floordiv(inner.num, inner.den * den))
    return add(whole, _atom(Quotient("//", rest, den)))


def _reduce(rest: Expr, den: int) -> tuple[Dim, int]:
    """Simplifies `floor(rest / den)` by the common factor of `den` and all non-constant
    coefficients: returns the new numerator and denominator. `(4i + 3) // 8` becomes `i // 2`.
    """
    common = den
    constant = 0
    for monomial, coefficient in rest.terms:
        if monomial:
            common = gcd(common, coefficient)
        else:
            constant = coefficient
    parts = [(m, c // common) for m, c in rest.terms if m]
    return _collect([*parts, ((), constant // common)]), den // common


def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def _single_atom(dim: Dim) -> Atom | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def mod(num: Dim, den: Dim) -> Dim:
    """`num mod den`, result in `[0, den)`, `den > 0`."""
    _check_divisor(num, den, "%")
    if isinstance(num, int) and isinstance(den, int):
        return num % den
    if den == 1:
        return 0
    _, rest = _split(num, den)
    if isinstance(rest, Expr) and isinstance(den, int):
        # terms that den divides vanish; in n mod d, an inner (m mod k*d) changes nothing
        plain: list[tuple[Monomial, int]] = []
        for monomial, coefficient in rest.terms:
            atom = monomial[0] if len(monomial) == 1 else None
            if monomial and _known_factor(monomial, coefficient) % den == 0:
                continue
            if isinstance(atom, Quotient) and atom.kind == "%" and isinstance(atom.den, int):
                if atom.den * coefficient % den == 0:
                    plain.extend((m, c * coefficient) for m, c in _terms(atom.num))
                    continue
            plain.append((monomial, coefficient))
        if plain != list(rest.terms):
            return mod(_collect(plain), den)
    known = _known_quotient(rest, den)
    if known is not None:
        return add(rest, mul(den, -known))
    return _atom(Quotient("%", rest, den))


def _known_quotient(num: Dim, den: Dim) -> int | None:
    """`floor(num / den)` if the bounds admit a single value, else None."""
    low, high = _quotient_bounds(num, den)
    if low == high:
        return low
    if low == 0 and isinstance(den, Expr) and less_equal(add(num, 1), den):
        return 0
    return None


def minimum(a: Dim, b: Dim) -> Dim:
    """`min(a, b)`."""
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """`max(a, b)`."""
    return _extremum("max", a, b)


def _extremum(kind: str, a: Dim, b: Dim) -> Dim:
    if less_equal(a, b):
        return a if kind == "min" else b
    if less_equal(b, a):
        return b if kind == "min" else a
    first, second = sorted((a, b), key=str)
    return _atom(Extremum(kind, first, second))


def _clamp(low: int, high: int) -> tuple[int, int]:
    return max(low, -INF), min(high, INF)


def _quotient_bounds(num: Dim, den: Dim) -> tuple[int, int]:
    (low, high), (least, most) = bounds(num), bounds(den)
    least, most = max(least, 1), max(most, 1)
    bottom = low // (least if low < 0 else most)
    top = high // (least if high >= 0 else most)
    return -INF if low == -INF else bottom, INF if high == INF else top


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return _clamp(atom.low, atom.high)
    if isinstance(atom, Extremum):
        (alow, ahigh), (blow, bhigh) = bounds(atom.a), bounds(atom.b)
        pick = max if atom.kind == "max" else min
        return pick(alow, blow), pick(ahigh, bhigh)
    if atom.kind == "//":
        return _quotient_bounds(atom.num, atom.den)
    low, high = bounds(atom.num)
    most = bounds(atom.den)[1]
    top = INF if most == INF else most - 1
    return 0, min(top, high) if low >= 0 else top


@_cached
def _expr_bounds(expr: Expr) -> tuple[int, int]:
    low = high = 0
    for monomial, coefficient in expr.terms:
        term_low = term_high = coefficient
        for atom in monomial:
            atom_low, atom_high = _atom_bounds(atom)
            corners = [x * y for x in (term_low, term_high) for y in (atom_low, atom_high)]
            term_low, term_high = _clamp(min(corners), max(corners))
        # an unknown bound stays unknown after any addition
        low = -INF if -INF in (low, term_low) else low + term_low
        high = INF if INF in (high, term_high) else high + term_high
    return _clamp(low, high)


def bounds(dim: Dim) -> tuple[int, int]:
    """Inclusive bounds for all values of the symbols; -INF and INF mean unknown."""
    return _expr_bounds(dim) if isinstance(dim, Expr) else _clamp(dim, dim)


def equal(a: Dim, b: Dim) -> bool | None:
    """Returns `a == b` as True, False, or None if it depends on the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    difference = add(a, mul(b, -1))
    if isinstance(difference, int):
        return difference == 0
    low, high = bounds(difference)
    return False if low > 0 or high < 0 else None


def less_equal(a: Dim, b: Dim) -> bool | None:
    """Returns `a <= b` as True, False, or None if it depends on the symbols."""
    low, high = bounds(add(b, mul(a, -1)))
    if low >= 0:
        return True
    return False if high < 0 else None


def _known_factor(monomial: Monomial, coefficient: int) -> int:
    """Returns a positive number that divides a term of a size expression, whatever the values of
    its symbols.
    """
    factor = abs(coefficient)
    for atom in monomial:
        if isinstance(atom, Symbol):
            factor *= atom.multiple
    return factor


def symbols(dim: Dim) -> set[Symbol]:
    """All symbols of an expression."""
    found: set[Symbol] = set()
    for monomial, _ in _terms(dim):
        for atom in monomial:
            if isinstance(atom, Symbol):
                found.add(atom)
            elif isinstance(atom, Extremum):
                found |= symbols(atom.a) | symbols(atom.b)
            else:
                found |= symbols(atom.num) | symbols(atom.den)
    return found


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replaces symbols by name; other symbols remain."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            term = mul(term, _substitute_atom(atom, values))
        total = add(total, term)
    return total


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        if atom.name in values:
            return values[atom.name]
    elif isinstance(atom, Extremum):
        pick = maximum if atom.kind == "max" else minimum
        return pick(substitute(atom.a, values), substitute(atom.b, values))
    else:
        num, den = substitute(atom.num, values), substitute(atom.den, values)
        return floordiv(num, den) if atom.kind == "//" else mod(num, den)
    return _atom(atom)
