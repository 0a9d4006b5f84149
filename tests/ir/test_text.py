"""Text: what is printed reads back to the same object; what is broken fails with a place."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
from counted import calls_of
from random_funcs import NAMES, kernel_func, random_func

from stack.errors import ParseError
from stack.ir import (
    Block,
    Builder,
    Data,
    Func,
    Node,
    constant,
    param,
    parse,
    rebuild,
    tensor,
    verify,
)
from stack.ir.builder import rebuild_block
from stack.ir.dim import mod, symbol
from stack.ir.lexer import MAX_NESTING, tokenize
from stack.ir.node import legal_name
from stack.ir.types import DTYPES, F32, I64, TensorType


def reads_back(func: Func) -> None:
    text = str(func)
    again = parse(text)
    assert again is func, text
    assert str(again) == text
    assert "\n\n" not in text and text.endswith("}\n")


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_random_functions_read_back(seed: int, symbolic: bool) -> None:
    func = random_func(seed, symbolic=symbolic)
    verify(func)
    reads_back(func)
    assert rebuild(func) is func


def test_a_fresh_process_state_reads_the_same_text() -> None:
    texts = [str(random_func(seed)) for seed in range(20)]
    gc.collect()  # nothing of them is alive any more
    for text in texts:
        assert str(parse(text)) == text


def test_kernels_with_open_blocks_read_back() -> None:
    func = kernel_func()
    verify(func)
    reads_back(func)
    text = str(func)
    assert text.count("%i < 4") == 2
    assert text.count("%exp = ") == 2  # one node, in both loops, under one name
    x = np.random.default_rng(0).random((4, 8), dtype=np.float32)
    np.testing.assert_allclose(func.interpret(x), -4 * np.exp(x), rtol=1e-6)


def test_the_text_itself() -> None:
    n = symbol("n", 1, 64, 4)
    b = Builder()
    x = param("x", tensor("f32", n, 8))
    b.loc = ("block.py:42 Attn.wq",)
    y = b.op("add", (x, 1.5), named="shifted")
    b.loc = ()
    s = b.op("reduce", (y,), {"kind": "sum", "axes": (1,)})
    table = b.op("const", (), {"value": Data(np.array([1.0, -0.0, np.nan]), F32)})
    assert str(b.func("main", [x], [s, table])) == (
        "func @main<n in 1..64 % 4>(%x: f32[n, 8]) -> (f32[n], f32[3]) at tensor {\n"
        '  %shifted = add(%x, 1.5:f32) : f32[n, 8] from "block.py:42 Attn.wq"\n'
        '  %reduce = reduce(%shifted) {axes=[1], kind="sum"} : f32[n]\n'
        "  %const = const() {value=data<f32[3], [1.0, -0.0, nan]>} : f32[3]\n"
        "  return %reduce, %const\n"
        "}\n"
    )


@pytest.mark.parametrize("bounds", ["..", "-7..", "..5", "-7..5 % 3"])
def test_a_number_that_is_no_size_may_be_negative(bounds: str) -> None:
    func = parse(f"""
        func @f<n in {bounds}>() -> (i64[]) at tensor {{
          %n = size() {{value=max(n, 0)}} : i64[]
          return %n
        }}""")
    assert f"<n in {bounds}>" in str(func)
    assert parse(str(func)) is func
    assert "max(0, n)" in str(func)


def test_what_a_person_writes() -> None:
    func = parse(
        """
        // a comment
        func @f(%x: f32[2,3]) -> (f32[3, 2], f32[]) at tensor { // another
          %unused = exp(%x) : f32[2, 3]
          %y = transpose(%x) {perm=[1,0],} : f32[3, 2]
          %c = const() {value=data<f32[], [2.0]>} : f32[]
          return %y, %c
        }""".replace(",}", "}")
    )
    assert [n.op for n in func.nodes] == ["transpose", "const"]
    reads_back(func)


def test_functions_without_anything() -> None:
    reads_back(Func("empty", Block((), ())))
    reads_back(Func("same", Block((p := param("x", tensor("f32")),), (p, p, p))))
    reads_back(
        Func("number", Block((), (constant(-0.0, "f32"), constant(True), constant(7, "u8"))))
    )


@pytest.mark.parametrize("name", NAMES + ["..", "", "1", "a.", "\ud800", "x" * 300, "é"])
def test_names_are_made_legal(name: str) -> None:
    b = Builder()
    x = param(name, tensor("f32"))
    y = b.op("neg", (x,), named=name)
    z = b.op("exp", (y,), named=name)
    func = b.func(name, [x], [z])
    assert len({x.attrs["name"], func.body.names[y], func.body.names[z]}) == 3
    reads_back(func)
    assert legal_name(legal_name(name)) == legal_name(name)


def test_names_that_look_like_the_next_free_one() -> None:
    b = Builder()
    x = param("x", tensor("f32"))
    nodes = [x]
    for name in ["x_1", "x", "x", "x_2", "x_1", "x_1_1", "x"]:
        nodes.append(b.op("neg" if len(nodes) % 2 else "exp", (nodes[-1],), named=name))
    func = b.func("f", [x], [nodes[-1]])
    assert len(set(func.body.names.values())) == 7
    reads_back(func)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_of_every_type(dtype: str) -> None:
    kind = DTYPES[dtype]
    for shape in [(), (0,), (2, 0, 3), (1,), (2, 3), (4, 4), (17,)]:
        array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(kind.numpy).reshape(shape)
        node = constant(array, dtype)
        func = Func("f", Block((), (node,)))
        reads_back(func)
        elided = array.size > 16
        assert (node.attrs["value"].digest in str(func)) == elided


def test_attribute_values() -> None:
    values = [
        True, 1, 1.0, 0, 0.0, -0.0, False, None, "", "1", 'a"b\\c\n\t\0', "é\ud800", float("inf"),
        float("-inf"), float("nan"), 1e-300, -5, 1 << 100, (), ((),), (1, (True, ("x", None))),
        F32, symbol("n") * 2 + 1, Data(np.zeros(2), F32), [1, [2]], np.int32(3), np.float64(0.1),
        np.float32(0.1), np.bool_(True), "data<", "none",
    ]  # fmt: skip
    x = param("x", tensor("f32"))
    nodes = [Node("custom", (x,), {"name": "f", "params": v}, tensor("f32")) for v in values]
    assert len(set(nodes)) == len(values) - 1  # np.bool_(True) is True
    reads_back(Func("f", Block((x,), nodes)))
    with pytest.raises(TypeError, match="no text form"):
        Node("custom", (x,), {"params": object()}, tensor("f32"))
    with pytest.raises(TypeError, match="no text form"):
        Node("custom", (x,), {"params": (1, {2})}, tensor("f32"))


def test_symbols_of_nested_blocks_are_declared() -> None:
    n = symbol("inner", 1, 9)
    p = param("p", tensor("f32"))
    b = Builder()
    line = b.iota(axis=0, type=tensor("i64", n))
    total = b.cast(b.reduce(line, kind="sum", axes=(0,)), type=tensor("f32"))
    block = b.block((p,), (b.add(p, total),))
    x = param("x", tensor("f32"))
    func = Func("f", Block((x,), (b.call(x, name="g", blocks=(block,)),)))
    assert [s.name for s in func.symbols] == ["inner"]
    reads_back(func)
    assert func.bind({"inner": 5}).interpret(np.float32(1)) == 11


def test_size_expressions_read_back() -> None:
    n, m, i = symbol("n"), symbol("m", 0, 9, 3), symbol("i", 0, 7)
    shapes = [
        n * m + 1,
        n // 3,
        mod(n, 5) * m,
        (n * 8 + i) // 16,
        (-1 * i + 20) // 3,
        n * n - n + 2,
    ]
    rng = random.Random(5)
    for _ in range(300):
        a, c = rng.choice(shapes), rng.choice(shapes)
        made = rng.choice([a + c, a * c, (a + 3) // rng.choice([2, 3, m + 1, n]), mod(a, n + m)])
        shapes.append(made if len(str(made)) < 200 else n)
    for k in range(0, len(shapes), 8):
        nodes = [Node("size", (), {"value": s}, tensor(I64)) for s in shapes[k : k + 8]]
        reads_back(Func("f", Block((), nodes)))


def test_types_of_every_space_read_back() -> None:
    types = [
        tensor("f32"), TensorType(F32, (), "tile"), TensorType(F32, (1, 16), "tile"),
        TensorType(F32, (10,), "tile"), TensorType(F32, (2,), "shared"),
        TensorType(F32, (0, 1), "local"), TensorType(F32, (), "global"),
    ]  # fmt: skip
    params = [param(f"p{i}", t) for i, t in enumerate(types)]
    nodes = [Node("custom", params, {"name": "f"}, t) for t in types]
    reads_back(Func("f", Block(params, nodes), "tile"))
    scalar = constant(1.0, "f32").attrs["value"]
    tile = Node("const", (), {"value": scalar}, TensorType(F32, (), "tile"))
    reads_back(Func("f", Block((), (tile, constant(1.0, "f32"))), "tile"))


# ---- what is broken


GOOD = """func @f<n in 1..64 % 4>(%x: f32[n, 8], %y: f32[8]) -> (f32[n, 8]) at tensor {
  %w = broadcast(%y) {axes=[1]} : f32[n, 8]
  %z = add(%x, %w) : f32[n, 8] from "a.py:1"
  return %z
}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        ("func", "fun", 1, 1, "expected 'func', found 'fun'"),
        ("@f", "f", 1, 6, "expected a function name"),
        ("@f", "%f", 1, 6, "expected a function name"),
        ("n in 1", "n on 1", 1, 11, "expected 'in'"),
        ("1..64", "9..6", 1, 9, "has no value"),
        ("% 4", "% 0", 1, 9, "has no value"),
        ("<n in", "<max in", 1, 9, "not a size name"),
        ("%x: f32[n, 8]", "%x f32[n, 8]", 1, 28, "expected ':'"),
        ("%x: f32[n", "%x: f33[n", 1, 29, "expected an element type"),
        ("f32[n, 8]", "f32[q, 8]", 1, 33, "a size name (n), found 'q'"),
        ("f32[n, 8]", "f32[-3, 8]", 1, 33, "expected a size, found -3"),
        ("f32[n, 8]", "f32[n//0, 8]", 1, 34, "positive divisor"),
        ("%y: f32[8]", "%x: f32[8]", 1, 40, "expected a new parameter name"),
        ("at tensor", "at sensor", 1, 70, "expected a level (tensor, tile, loop)"),
        ("(f32[n, 8]) at", "(f32[8]) at", 1, 52, "the header declares (f32[8])"),
        ("broadcast(", "brodcast(", 2, 8, "did you mean broadcast"),
        ("broadcast(%y)", "broadcast(%v)", 2, 18, "expected a value defined above, found '%v'"),
        ("broadcast(%y)", "broadcast(%x, %y)", 2, 8, "broadcast takes 1 operand(s), got 2"),
        ("{axes=[1]}", "{axes=[1, axes=2]}", 2, 32, "found 'axes'"),
        ("{axes=[1]}", "{axes=[1], axes=[1]}", 2, 33, "given twice"),
        ("{axes=[1]}", '{axes="1"}', 2, 8, "is a list of integers, not '1'"),
        ("{axes=[1]}", "{axes=[2]}", 2, 8, "does not match axis 2"),
        ("{axes=[1]}", "{axis=[1]}", 2, 8, "has no attribute 'axis'"),
        ("{axes=[1]} :", ":", 2, 8, "needs attribute 'axes'"),
        ("{axes=[1]}", "{axes=[1]", 2, 32, "expected ','"),
        ("%z = add(%x, %w) : f32[n, 8]", "%z = add(%x, %w) : f32[n, 9]", 3, 8, "the text says"),
        ("%z = add(%x, %w)", "%z = add(%x, %y)", 3, 8, "operands of an elementwise op"),
        ("%z =", "%x =", 3, 3, "%x is defined above"),
        ('"a.py:1"', "a.py", 3, 38, "unexpected character '.'"),
        ('"a.py:1"', '"\\q"', 3, 37, "expected a quoted text"),
        ('"a.py:1"', '"a.py', 3, 37, "unexpected character"),
        ("return %z\n}", "return %z\n} %z", 5, 3, "expected the end of the text"),
        ("return %z\n}", "return %z\n", 6, 1, "expected ',' or '}', found 'end of text'"),
        ("return", "retrun", 4, 3, "expected a value such as %x or 'return'"),
        ("add(%x, %w)", "add(%x, 1:f32[2])", 3, 21, "found '['"),
        ("add(%x, %w)", "add(%x, 1.5:i32)", 3, 16, "expected a number of type i32"),
        ("add(%x, %w)", "add(%x, 1e999:f32)", 3, 16, "too large"),
        ("add(%x, %w)", 'param() {name="q"}', 3, 8, "parameters belong in the header"),
        ("%z = add", "%z$ = add", 3, 5, "unexpected character '$'"),
        ("%z = add", "%z. = add", 3, 3, "neither start nor end with a dot"),
    ],
)
def test_errors_say_where_and_what(
    old: str, new: str, line: int, column: int, message: str
) -> None:
    assert old in GOOD
    parse(GOOD)
    with pytest.raises(ParseError) as caught:
        parse(GOOD.replace(old, new, 1))
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def with_type(text: str) -> str:
    return f"func @f<n in 1..>(%x: {text}) -> () at tensor {{ return }}"


def with_attr(text: str) -> str:
    return (
        "func @f<n in 1..>() -> (f32[]) at tensor {\n"
        f'  %x = custom() {{name="f", params={text}}} : f32[]\n  return %x\n}}'
    )


HUGE = "9" * 5000
HARD = {
    "huge size": with_type(f"f32[{HUGE}]"),
    "huge tile": with_type(f"f32<{HUGE}>"),
    "long tile": with_type("f32<" + "1x" * 5000 + "1>"),
    "rank": with_type("f32[" + "1, " * 100 + "1]"),
    "deep brackets": with_type("f32[" + "(" * 5000 + "1" + ")" * 5000 + "]"),
    "deep signs": with_type("f32[" + "-" * 5001 + "n]"),
    "quotients": with_type("f32[n" + "//2%3" * 5000 + "]"),
    "minima": with_type("f32[" + "min(n, " * 5000 + "1" + ")" * 5000 + "]"),
    "power": with_type("f32[" + "*".join(["n"] * 5000) + "]"),
    "numbers": with_type("f32[" + "*".join(["9" * 30] * 5000) + "]"),
    "deep types": with_type("(" * 5000),
    "deep lists": with_attr("[" * 5000 + "]" * 5000),
    "huge integer": with_attr(HUGE),
    "huge float": with_attr("1e999999999:float"),
    "nan bits": with_attr("nan.7f:float"),
    "huge scalar": "func @f() -> (i64[]) at tensor { return " + HUGE + ":i64 }",
    "huge exponent": "func @f() -> (f32[]) at tensor { return 1e999999999:f32 }",
    "wrapping shape": with_attr("data<f32[4294967296, 4294967296], []>"),
    "huge data": with_attr("data<f32[99999999999], [1.0]>"),
    "huge empty data": with_attr(f"data<f32[0, {'9' * 30}], []>"),
    "data rank": with_attr("data<f32[" + "1, " * 100 + "1], [1.0]>"),
    "data digest": with_attr("data<f32[17], " + "ab" * 16 + ">"),
    "data no end": with_attr("data<f32[17], abab"),
    "negative data": with_attr("data<f32[-1], []>"),
    "quotes": with_attr('"' + "\\" * 5001),
    "nothing": "",
    "only marks": "((((((((((",
}


@pytest.mark.parametrize("what", HARD)
def test_hard_texts_fail_early(what: str) -> None:
    def read() -> None:
        with pytest.raises(ParseError) as caught:
            parse(HARD[what])
        found.append(caught.value)

    found: list[ParseError] = []
    _, calls = calls_of(read)
    (error,) = found
    assert calls < 1000 + 100 * len(HARD[what])
    assert error.line >= 1
    assert error.column >= 1


def test_polynomials_that_explode_fail_fast() -> None:
    names = [f"s{i}" for i in range(12)]
    header = ", ".join(f"{n} in 1.." for n in names)
    power = "*".join(["(" + "+".join(names) + ")"] * 20)
    with pytest.raises(ParseError, match="terms"):
        parse(f"func @f<{header}>(%x: f32[{power}]) -> () at tensor {{ return }}")
    # each size is small, their product is not
    many = ", ".join(["(" + "+".join(names) + ")"] * 20)
    text = f"func @f<{header}>(%x: f32[{many}]) -> (f32[1]) at tensor {{ %y = reshape(%x) : f32[1]"
    with pytest.raises(ParseError, match="terms"):
        parse(text + "\n return %y }")


def test_sizes_without_memory_are_only_numbers() -> None:
    big = "f32[99999999999, 99999999999]"
    func = parse(
        f"func @f(%x: {big}) -> ({big}, i64[99999999999]) at tensor {{\n  %y = exp(%x) : {big}\n"
        "  %i = iota() {axis=0} : i64[99999999999]\n  return %y, %i\n}"
    )
    reads_back(func)
    verify(func)


def nested(depth: int) -> Func:
    p = param("p", tensor("f32"))
    b = Builder()
    block = Block((p,), (b.exp(p),))
    for _ in range(depth - 1):
        block = Block((p,), (b.call(p, name="g", blocks=(block,)),))
    return Func("f", block)


def test_deep_nesting() -> None:
    fits = nested(MAX_NESTING)
    verify(fits)
    reads_back(fits)
    text = str(nested(MAX_NESTING + 10))
    with pytest.raises(ParseError, match="blocks are nested more than"):
        parse(text)


def mutate(rng: random.Random, text: str) -> str:
    """Deletions, swaps, duplications, replacements and cuts, of characters and of tokens."""
    kind = rng.randrange(8)
    if kind < 3 and text:
        at, length = rng.randrange(len(text)), rng.choice([1, 1, 2, 5, 40])
        part = text[at : at + length]
        change = ["", part * 2, "".join(rng.choice('%@{}[]()<>:,="x0-\\\n') for _ in part)][kind]
        return text[:at] + change + text[at + length :]
    if kind == 3:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 4:
        lines = text.split("\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
        return "\n".join(lines)
    try:
        tokens = tokenize(text)[:-1]
    except ParseError:
        return text[::2]
    if len(tokens) < 2:
        return text + "}"
    i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    words = [t.text for t in tokens]
    if kind == 5:
        words[i], words[j] = words[j], words[i]
    elif kind == 6:
        words[i] = words[j]
    else:
        odd = ["-1", "0", HUGE, "1e999", "nan.1", '"x"', "none", "99999999999", "n", "true", "tile"]
        words[i] = rng.choice([*odd, "bf16", "[", "data", "%x", "f32<2>", "global", "//", "c64"])
    return " ".join(words)


@pytest.mark.parametrize("part", range(8))
def test_mutated_texts_give_a_function_or_a_parse_error(part: int) -> None:
    rng = random.Random(part)
    texts = [str(random_func(seed, 8, symbolic=bool(seed % 2))) for seed in range(part, 200, 8)]
    texts += [str(kernel_func()), GOOD]
    parsed = 0
    for count in range(300):
        text = rng.choice(texts)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            text = mutate(rng, text)
        try:
            func = parse(text)
        except ParseError as error:
            lines = text.split("\n")
            assert 1 <= error.line <= len(lines), (count, text)
            assert 1 <= error.column <= len(lines[error.line - 1]) + 1, (count, text)
        else:
            parsed += 1
            reads_back(func)
    assert parsed


# ---- the graph behind it


def test_copies_are_the_same_object() -> None:
    import copy
    import pickle

    func = random_func(3)
    assert copy.copy(func) is func
    assert copy.deepcopy({"f": func})["f"] is func
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(func)


def test_a_long_chain_lives_and_dies_without_recursion() -> None:
    b = Builder()
    x = value = param("x", tensor("f32"))
    for i in range(20_000):
        value = b.add(value, float(i % 7))
    func = b.func("f", [x], [value])
    assert len(func.nodes) == 20_000 + 7
    assert parse(str(func)) is func
    del func, value, b
    gc.collect()


def test_names_and_lines_survive_a_rebuild() -> None:
    func = parse(GOOD)
    renamed = rebuild(
        func, lambda n, args, blocks: Node("sub" if n.op == "add" else n.op, args, n.attrs, n.type)
    )
    assert "%z = sub(%x, %w)" in str(renamed)
    assert 'from "a.py:1"' in str(renamed)
    assert rebuild_block(func.body) is func.body
