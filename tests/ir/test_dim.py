"""Size expressions against Python integers, over random expressions and random symbol values."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from stack.ir.dim import (
    INF,
    Dim,
    Expr,
    bounds,
    equal,
    floordiv,
    less_equal,
    maximum,
    minimum,
    mod,
    product,
    substitute,
    symbol,
    symbols,
)

SYMBOLS = [
    symbol("a", 1, 6),
    symbol("b", 0, 9),
    symbol("c", 4, 16, 4),
    symbol("i", 0, 7),
    symbol("n"),
    symbol("z", -5, 5),
]
NAMES = [str(s) for s in SYMBOLS]
Values = dict[str, int]
Case = tuple[Dim, Callable[[Values], int]]


def draw_values(rng: random.Random) -> Values:
    return {
        "a": rng.randint(1, 6),
        "b": rng.randint(0, 9),
        "c": 4 * rng.randint(1, 4),
        "i": rng.randint(0, 7),
        "n": rng.choice([1, 2, 3, 1000, 1 << 40]),
        "z": rng.randint(-5, 5),
    }


def draw(rng: random.Random, depth: int) -> Case:
    """An expression together with the function that plain Python has for it."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.4:
            value = rng.randint(-9, 17)
            return value, lambda v: value
        at = rng.randrange(len(SYMBOLS))
        return SYMBOLS[at], lambda v: v[NAMES[at]]
    kind = rng.choice(["+", "+", "-", "*", "//", "%", "min", "max"])
    left, left_value = draw(rng, depth - 1)
    if kind in ("//", "%"):
        right, right_value = draw_divisor(rng)
    else:
        right, right_value = draw(rng, depth - 1)
    if kind == "+":
        return left + right, lambda v: left_value(v) + right_value(v)
    if kind == "-":
        return left - right, lambda v: left_value(v) - right_value(v)
    if kind == "*":
        return left * right, lambda v: left_value(v) * right_value(v)
    if kind == "//":
        return floordiv(left, right), lambda v: left_value(v) // right_value(v)
    if kind == "%":
        return mod(left, right), lambda v: left_value(v) % right_value(v)
    if kind == "min":
        return minimum(left, right), lambda v: min(left_value(v), right_value(v))
    return maximum(left, right), lambda v: max(left_value(v), right_value(v))


def draw_divisor(rng: random.Random) -> Case:
    if rng.random() < 0.6:
        value = rng.choice([1, 2, 3, 4, 8, 12])
        return value, lambda v: value
    a, c, n = SYMBOLS[0], SYMBOLS[2], SYMBOLS[4]
    return rng.choice(
        [
            (a, lambda v: v["a"]),
            (c, lambda v: v["c"]),
            (n, lambda v: v["n"]),
            (a * c, lambda v: v["a"] * v["c"]),
            (c * 2, lambda v: v["c"] * 2),
            (a + 3, lambda v: v["a"] + 3),
        ]
    )


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions_agree_with_python(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        dim, value = draw(rng, rng.randint(1, 4))
        low, high = bounds(dim)
        for _ in range(12):
            v = draw_values(rng)
            expected = value(v)
            assert substitute(dim, v) == expected, (str(dim), v)
            assert low <= expected or low == -INF, (str(dim), v, low)
            assert expected <= high or high == INF, (str(dim), v, high)
            part = {k: v[k] for k in rng.sample(NAMES, 3)}
            assert substitute(substitute(dim, part), v) == expected, (str(dim), part, v)


def divides(divisor: int, dim: Dim) -> bool | None:
    """True if a size is a multiple of a number, by the bounds of its remainder; None if unknown."""
    rest = mod(dim, divisor)
    if isinstance(rest, int):
        return rest == 0
    return False if bounds(rest)[0] > 0 else None


@pytest.mark.parametrize("seed", range(8))
def test_answers_hold_for_every_value(seed: int) -> None:
    rng = random.Random(100 + seed)
    answered = 0
    for _ in range(300):
        a, a_value = draw(rng, rng.randint(0, 3))
        b, b_value = draw(rng, rng.randint(0, 2))
        divisor = rng.choice([1, 2, 3, 4, 8])
        same, below, whole = equal(a, b), less_equal(a, b), divides(divisor, a)
        answered += (same is not None) + (below is not None) + (whole is not None)
        for _ in range(12):
            v = draw_values(rng)
            assert same in (None, a_value(v) == b_value(v)), (str(a), str(b), v)
            assert below in (None, a_value(v) <= b_value(v)), (str(a), str(b), v)
            assert whole in (None, a_value(v) % divisor == 0), (str(a), divisor, v)
    assert answered > 300  # None is always sound: it must not be the only answer


@pytest.mark.parametrize("seed", range(4))
def test_canonical_form_does_not_depend_on_the_order(seed: int) -> None:
    rng = random.Random(200 + seed)
    for _ in range(200):
        parts = [draw(rng, 2)[0] for _ in range(4)]
        shuffled = rng.sample(parts, len(parts))
        assert sum(parts) == sum(shuffled)
        assert product(parts) == product(shuffled)
        assert hash(sum(parts)) == hash(sum(shuffled))
        assert str(product(parts)) == str(product(shuffled))


a, b, c, i, n, z = SYMBOLS


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (a + 0, "a"),
        (a - a, "0"),
        (2 * a + a, "3*a"),
        (a * b - b * a, "0"),
        ((a + 1) * (a - 1), "a*a - 1"),
        (-(a - b), "-a + b"),
        (5 - a, "-a + 5"),
        ((8 * n) // 8, "n"),
        ((8 * n + 3) // 8, "n"),
        ((8 * n + 3) % 8, "3"),
        ((8 * n + i) // 8, "n"),
        ((8 * n + i) % 8, "i"),
        (i // 8, "0"),
        (i % 8, "i"),
        ((n * 12) // 4, "3*n"),
        ((n // 2) // 3, "(n//6)"),
        ((n % 12) % 4, "(n % 4)"),
        ((4 * i + 3) // 8, "(i//2)"),
        ((9 * n) // 8, "(n//8) + n"),
        ((9 * n) % 8, "(n % 8)"),
        ((n * c) // c, "n"),
        ((n * c + c - 1) // c, "n"),
        ((n * a * c) % c, "0"),
        ((n * (a + 3)) // (a + 3), "((a*n + 3*n)//(a + 3))"),
        ((a + 3) // (a + 3), "1"),
        ((c + i) % 4, "(i % 4)"),
        (floordiv(-1, c), "-1"),
        (mod(-1, c), "c - 1"),
        (maximum(b, a) - maximum(a, b), "0"),
        (minimum(i, 10), "i"),
        (maximum(n, 1), "n"),
        (maximum(n - 1, 0), "n - 1"),
        (minimum(a, b), "min(a, b)"),
        (floordiv(7, 2), "3"),
        (mod(-7, 4), "1"),
    ],
)
def test_simplification(got: Dim, text: str) -> None:
    assert str(got) == text


def test_unravel_of_ravel_is_identity() -> None:
    h, d, s = symbol("h", 0, 11), symbol("d", 0, 63), symbol("s", 0, 99)
    flat = (s * 12 + h) * 64 + d
    assert flat % 64 == d
    assert (flat // 64) % 12 == h
    assert flat // 768 == s
    size = symbol("D", 1, 4096)
    inner = symbol("j", 0, 0)
    assert (s * size + inner) // size == s


def test_questions_about_unknowns_answer_none_and_truth_raises() -> None:
    assert equal(a, b) is None
    assert less_equal(a, b) is None
    assert divides(8, c) is None
    assert divides(4, c) is True
    assert divides(4, c + 2) is False
    assert less_equal(b, 9) is True
    assert less_equal(7, a) is False
    assert equal(a, 7) is False
    with pytest.raises(TypeError, match="symbolic size a"):
        bool(a)
    with pytest.raises(TypeError, match="bind its symbols"):
        range(a)  # pyright: ignore[reportArgumentType]


def test_zero_sizes() -> None:
    empty = symbol("e", 0, 4)
    assert bounds(n // maximum(empty, 1))[0] == 0
    low, high = bounds(floordiv(n, empty))  # e = 0 is the caller's promise never to ask
    assert low <= 0
    assert high == INF
    for operation in (floordiv, mod):
        with pytest.raises(ZeroDivisionError):
            operation(n, 0)
        with pytest.raises(ValueError, match="positive"):
            operation(n, -4)


def test_symbols_and_partial_substitution() -> None:
    dim = floordiv(n * a + maximum(a, b), c)
    assert {s.name for s in symbols(dim)} == {"n", "a", "b", "c"}
    assert str(substitute(dim, {"c": 4})) == "((a*n + max(a, b))//4)"
    assert substitute(dim, {"n": 8, "a": 2, "b": 9, "c": 4}) == (16 + 9) // 4
    assert substitute(7, {"a": 1}) == 7
    assert symbols(3) == set()


@pytest.mark.parametrize(
    "name", ["true", "max", "inf", "nan", "data", "1x", "a b", "", "a-b", "a.b"]
)
def test_symbol_names_that_the_text_could_not_read_back(name: str) -> None:
    with pytest.raises(ValueError, match="size name"):
        symbol(name)


@pytest.mark.parametrize(("low", "high", "multiple"), [(3, 2, 1), (1, 2, 0), (5, 7, 4)])
def test_symbols_without_any_value(low: int, high: int, multiple: int) -> None:
    with pytest.raises(ValueError, match="no value"):
        symbol("s", low, high, multiple)


def test_expressions_that_would_explode_are_refused() -> None:
    wide: Dim = sum((symbol(f"s{k}") for k in range(12)), 0)
    with pytest.raises(OverflowError, match="terms"):
        for _ in range(30):
            wide = wide * wide
    long: Dim = a
    with pytest.raises(OverflowError, match="factors"):
        for _ in range(500):
            long = long * a


def test_expressions_are_ordered_by_degree_then_name() -> None:
    texts = [str(b + a * b + 1), str(n * a + c + 2)]
    assert texts == ["a*b + b + 1", "a*n + c + 2"]
    assert all(isinstance(x, Expr) for x in (a + b, a * b))
    assert all(x is not y for x, y in pairwise((a, b, c)))
