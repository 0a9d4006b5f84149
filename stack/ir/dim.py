"""Sizes and index expressions: `int`, or a small polynomial over symbols with known bounds.

One class serves both: a symbolic size is a polynomial over size symbols, an index map is a tuple of
polynomials over loop symbols. Polynomials are kept in a canonical form, so `==` is structural
equality. Questions about values answer True, False or None (unknown).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd

INF = 1 << 62


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
    num: Expr
    den: Dim

    def __str__(self) -> str:
        return f"({_wrap(self.num)}{self.kind}{_wrap(self.den)})"


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
        raise TypeError(
            f"the truth of the symbolic size {self} is not known; ask equal(), less_equal() or"
            " divides(), which answer True, False or None"
        )

    def __index__(self) -> int:
        raise TypeError(f"the size {self} is symbolic; bind its symbols first (Func.bind)")

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
    """A polynomial that is one symbol."""
    return Expr((((Symbol(name, low, high, multiple),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), dim),) if dim else ()


@cache
def _sort_key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), tuple(str(atom) for atom in monomial))


def _collect(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    kept.sort(key=lambda term: _sort_key(term[0]))
    return Expr(tuple(kept))


def add(a: Dim, b: Dim) -> Dim:
    """`a + b` in canonical form."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _collect([*_terms(a), *_terms(b)])


def mul(a: Dim, b: Dim) -> Dim:
    """`a * b` in canonical form."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    product: list[tuple[Monomial, int]] = []
    for m1, c1 in _terms(a):
        for m2, c2 in _terms(b):
            product.append((tuple(sorted(m1 + m2, key=str)), c1 * c2))
    return _collect(product)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """Product of sizes; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def _exact_quotient(dim: Dim, den: Dim) -> Dim | None:
    """`dim / den` where every term divides, else None."""
    if isinstance(den, int):
        if all(c % den == 0 for _, c in _terms(dim)):
            return _collect([(m, c // den) for m, c in _terms(dim)])
        return None
    if len(den.terms) != 1:
        if dim == den:
            return 1
        return None
    (den_mono, den_coef) = den.terms[0]
    out: list[tuple[Monomial, int]] = []
    for monomial, coefficient in _terms(dim):
        rest = list(monomial)
        for atom in den_mono:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % den_coef:
            return None
        out.append((tuple(rest), coefficient // den_coef))
    return _collect(out)


def _split(num: Dim, den: Dim) -> tuple[Dim, Dim]:
    """`num = quotient * den + rest` with the terms that divide exactly in the quotient."""
    whole: Dim = 0
    rest: Dim = 0
    for term in _terms(num):
        piece = _collect([term])
        exact = _exact_quotient(piece, den)
        if exact is not None:
            whole = add(whole, exact)
        elif isinstance(den, int) and not term[0]:
            whole = add(whole, term[1] // den)
            rest = add(rest, term[1] % den)
        else:
            rest = add(rest, piece)
    return whole, rest


def floordiv(num: Dim, den: Dim) -> Dim:
    """`floor(num / den)`, `den > 0`, simplified by exact terms and by bounds."""
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    if den == 1:
        return num
    whole, rest = _split(num, den)
    if _within(rest, den):
        return whole
    if isinstance(rest, Expr):
        if isinstance(den, int):
            rest, den = _reduce(rest, den)
            if den == 1:
                return add(whole, rest)
            if _within(rest, den):
                return whole
            if isinstance(rest, int):
                return add(whole, rest // den)
            inner = _single_atom(rest)
            if isinstance(inner, Quotient) and inner.kind == "//" and isinstance(inner.den, int):
                return add(whole, floordiv(inner.num, inner.den * den))
        return add(whole, Expr((((Quotient("//", rest, den),), 1),)))
    if isinstance(den, int):
        return add(whole, rest // den)
    return add(whole, Expr((((Quotient("//", Expr((((), rest),)), den),), 1),)))


def _reduce(rest: Expr, den: int) -> tuple[Dim, int]:
    """Drop the common factor of all non-constant coefficients, as `(4i + 3) // 8 = i // 2`."""
    common = den
    constant = 0
    for monomial, coefficient in rest.terms:
        if monomial:
            common = gcd(common, coefficient)
        else:
            constant = coefficient
    if common <= 1:
        return rest, den
    parts = [(m, c // common) for m, c in rest.terms if m]
    return _collect([*parts, ((), constant // common)]), den // common


def _single_atom(dim: Dim) -> Atom | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def mod(num: Dim, den: Dim) -> Dim:
    """`num mod den`, result in `[0, den)`, `den > 0`."""
    if den == 0:
        raise ZeroDivisionError(f"{num} % 0")
    if isinstance(num, int) and isinstance(den, int):
        return num % den
    if den == 1:
        return 0
    _, rest = _split(num, den)
    if isinstance(rest, Expr) and isinstance(den, int):
        # n mod d where n contains (m mod k*d): the inner mod changes nothing
        plain: list[tuple[Monomial, int]] = []
        changed = False
        for monomial, coefficient in rest.terms:
            atom = monomial[0] if len(monomial) == 1 else None
            if isinstance(atom, Quotient) and atom.kind == "%" and isinstance(atom.den, int):
                if atom.den * coefficient % den == 0:
                    plain.extend((m, c * coefficient) for m, c in atom.num.terms)
                    changed = True
                    continue
            plain.append((monomial, coefficient))
        if changed:
            return mod(_collect(plain), den)
    if _within(rest, den):
        return rest
    if isinstance(rest, int):
        if isinstance(den, int):
            return rest % den
        rest = Expr((((), rest),))
    return Expr((((Quotient("%", rest, den),), 1),))


def _within(rest: Dim, den: Dim) -> bool:
    """Whether `0 <= rest < den` for certain."""
    low, high = bounds(rest)
    den_low, _ = bounds(den)
    if low < 0:
        return False
    if high < den_low:
        return True
    return isinstance(den, Expr) and less_equal(add(rest, 1), den) is True


def minimum(a: Dim, b: Dim) -> Dim:
    """`min(a, b)`."""
    if less_equal(a, b):
        return a
    if less_equal(b, a):
        return b
    return Expr((((Extremum("min", a, b),), 1),))


def maximum(a: Dim, b: Dim) -> Dim:
    """`max(a, b)`."""
    if less_equal(a, b):
        return b
    if less_equal(b, a):
        return a
    return Expr((((Extremum("max", a, b),), 1),))


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    if isinstance(atom, Extremum):
        (alow, ahigh), (blow, bhigh) = bounds(atom.a), bounds(atom.b)
        pick = max if atom.kind == "max" else min
        return pick(alow, blow), pick(ahigh, bhigh)
    low, high = bounds(atom.num)
    den_low, den_high = bounds(atom.den)
    if atom.kind == "%":
        top = den_high - 1
        return (0, min(top, high)) if low >= 0 else (0, top)
    divisors = (den_low, den_high)
    return (
        min(low // d for d in divisors) if low < 0 else low // den_high,
        high // den_low if high >= 0 else max(high // d for d in divisors),
    )


@cache
def _expr_bounds(expr: Expr) -> tuple[int, int]:
    low = high = 0
    for monomial, coefficient in expr.terms:
        term_low = term_high = 1
        for atom in monomial:
            atom_low, atom_high = _atom_bounds(atom)
            corners = [x * y for x in (term_low, term_high) for y in (atom_low, atom_high)]
            term_low, term_high = min(corners), max(corners)
        if coefficient < 0:
            term_low, term_high = term_high, term_low
        low += term_low * coefficient
        high += term_high * coefficient
    return max(low, -INF), min(high, INF)


def bounds(dim: Dim) -> tuple[int, int]:
    """Inclusive lower and upper bound that hold for every value of the symbols."""
    return _expr_bounds(dim) if isinstance(dim, Expr) else (dim, dim)


def equal(a: Dim, b: Dim) -> bool | None:
    """Whether `a == b`: True, False, or None where it depends on the symbols."""
    difference = add(a, mul(b, -1))
    if isinstance(difference, int):
        return difference == 0
    low, high = bounds(difference)
    return False if low > 0 or high < 0 else None


def less_equal(a: Dim, b: Dim) -> bool | None:
    """Whether `a <= b`: True, False, or None where it depends on the symbols."""
    low, high = bounds(add(b, mul(a, -1)))
    if low >= 0:
        return True
    return False if high < 0 else None


def divides(divisor: int, dim: Dim) -> bool | None:
    """Whether `divisor` divides `dim`: True, False or None."""
    known = 0
    for monomial, coefficient in _terms(dim):
        factor = abs(coefficient)
        for atom in monomial:
            if isinstance(atom, Symbol):
                factor *= atom.multiple
        if factor % divisor:
            if not monomial:
                known += coefficient
                continue
            return None
    return known % divisor == 0


def symbols(dim: Dim) -> set[Symbol]:
    """Every symbol that occurs in the expression."""
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
    """Replace symbols by name; what is not named stays symbolic."""
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
    return Expr((((atom,), 1),))
