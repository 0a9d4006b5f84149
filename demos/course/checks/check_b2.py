from __future__ import annotations

from typing import Any

from stack.demos.course.answers import ask

MATMUL = "m k, k n -> m n"


def check_parse(student: Any) -> None:
    """Rule.parse splits operands and axes; a side may be empty

    Hint: text.partition("->") gives both sides. "".split() is an empty list.
    """
    for text, operands, result in (
        (MATMUL, (("m", "k"), ("k", "n")), ("m", "n")),
        ("a b ->", (("a", "b"),), ()),
        ("head row -> row head", (("head", "row"),), ("row", "head")),
    ):
        call = lambda t=text: (student.Rule.parse(t).operands, student.Rule.parse(t).result)
        ask(call, given=f"operands and result of Rule.parse({text!r})").equals((operands, result))


def _rule(student: Any, operands: tuple[tuple[str, ...], ...], result: tuple[str, ...]) -> Any:
    return student.Rule(operands, result)


def check_reduced(student: Any) -> None:
    """Rule.reduced lists the axes that the result lacks, each once, in order of first use

    Hint: dict.fromkeys keeps the first of equal names, in order. itertools.chain joins operands.
    """
    for operands, result, wanted in (
        ((("m", "k"), ("k", "n")), ("m", "n"), ("k",)),
        ((("b", "z", "a"),), ("b",), ("z", "a")),
        ((("a",), ("a",)), ("a",), ()),
        ((("m",), ("m", "k")), ("m",), ("k",)),
        ((("m", "k"), ("m",)), ("m",), ("k",)),
        ((("b", "y"), ("x", "y", "a")), ("b",), ("y", "x", "a")),
    ):
        rule = _rule(student, operands, result)
        ask(lambda r=rule: tuple(r.reduced), given=f"reduced of {rule}").equals(wanted)


def check_sizes(student: Any) -> None:
    """Rule.sizes gives each axis its size, and refuses shapes that do not fit

    Hint: first compare len(names) with len(shape). Then go through names and sizes together; an
    axis that has another size already is an error. Raise MiniError for both.
    """
    rule = _rule(student, (("m", "k"), ("k", "n")), ("m", "n"))
    sizes = lambda shapes: rule.sizes(shapes)
    question = ask(lambda: sizes([(2, 3), (3, 4)]), given=f"sizes of {rule} for (2, 3), (3, 4)")
    question.equals({"m": 2, "k": 3, "n": 4})
    batched = _rule(student, (("b", "m", "k"), ("b", "k", "n")), ("b", "m", "n"))
    for one, shapes in (
        (rule, [(2, 3), (4, 5)]),
        (rule, [(2, 3), (1, 5)]),
        (rule, [(2, 3), (3,)]),
        (rule, [(2, 3, 1), (3, 4)]),
        (batched, [(2, 3, 4), (5, 4, 3)]),  # the axis b, which is not reduced
    ):
        call = lambda r=one, s=shapes: r.sizes(s)
        given = f"sizes of {one} for {', '.join(map(str, shapes))}"
        ask(call, given=given).refuses(student.MiniError)


def check_pull(student: Any) -> None:
    """Rule.pull gives the index at which each operand is read

    Hint: a list with one tuple for each operand: index[name] for each of its names.
    """
    index = {"m": "i", "n": "j", "k": "r"}
    for operands, result, wanted in (
        ((("m", "k"), ("k", "n")), ("m", "n"), [("i", "r"), ("r", "j")]),
        ((("m", "n"),), ("n", "m"), [("i", "j")]),
        (((), ("n",)), ("n",), [(), ("j",)]),
    ):
        rule = _rule(student, operands, result)
        call = lambda r=rule: [tuple(at) for at in r.pull(index)]
        ask(call, given=f"pull of {rule} for m: i, n: j, k: r").equals(wanted)
