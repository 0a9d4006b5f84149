from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stack.demos.course.answers import ask, show


def _with_ops(student: Any) -> Any:
    """The student's module with the ops `twice`, whose result has the type of its operand, and
    `signs`, whose result has one bool for each of its `rows`.
    """
    twice = SimpleNamespace(infer=lambda args, attrs: args[0].type)
    signs = SimpleNamespace(infer=lambda args, attrs: student.Type("bool", (attrs["rows"],)))
    student.OPS = {**getattr(student, "OPS", {}), "twice": twice, "signs": signs}
    return student


def _param(student: Any, name: str = "x") -> Any:
    return student.Node("param", (), (("name", name),), student.Type("f32", (2, 3)))


def check_bytes(student: Any) -> None:
    """Type.bytes: 4 for each f32, 1 for each bool

    Hint: prod(shape) counts the elements; prod(()) is 1.
    """
    for dtype, shape, wanted in (("f32", (2, 3), 24), ("bool", (2, 3), 6), ("f32", (), 4)):
        call = lambda d=dtype, s=shape: student.Type(d, s).bytes
        ask(call, given=f"Type({dtype!r}, {shape}).bytes").equals(wanted)


def check_make(student: Any) -> None:
    """make returns a node with op, args, sorted attributes, the inferred type and the line

    Hint: OPS[op].infer(args, attrs) gives the type. The line is `source`, or else _LINES[-1].
    """
    mini, x = _with_ops(student), _param(student)

    def made() -> tuple[Any, ...]:
        node = mini.make("twice", x, source="a.py:1", b=2, a=1)
        return node.op, node.args == (x,), node.attrs, str(node.type), node.source

    wanted = ("twice", True, (("a", 1), ("b", 2)), "f32[2, 3]", "a.py:1")
    given = (
        'op, args == (x,), attrs, type and source of make("twice", x, source="a.py:1", b=2, a=1)'
    )
    ask(lambda: made(), given=given).equals(wanted)
    call = lambda: str(mini.make("signs", x, rows=5).type)
    ask(call, given='type of make("signs", x, rows=5), as its infer says').equals("bool[5]")

    def inside(source: str) -> str:
        with mini.from_line("b.py:7"):
            return mini.make("twice", x, c=source, source=source).source

    for source, line in (("", "b.py:7"), ("c.py:8", "c.py:8")):
        given = f'source of make("twice", x, source={source!r}) in from_line("b.py:7")'
        ask(lambda s=source: inside(s), given=given).equals(line)


def check_interned(student: Any) -> None:
    """make returns the same object for equal nodes, and others for all that differ

    Hint: the key has the op, the arguments in their order, and the sorted attributes; not the line.
    0.0 == -0.0, so put the text of the attributes into the key.
    """
    mini, x, y = _with_ops(student), _param(student), _param(student, "y")
    inner = ask(lambda: mini.make("twice", y, a=1), given='make("twice", y, a=1)').answer("a node")
    names = {x: "x", y: "y", inner: 'make("twice", y, a=1)'}
    made = lambda op, args, attrs: mini.make(op, *args, **attrs)
    one = ("twice", (x, y), {"a": 1, "b": 2})
    for op, args, attrs, wanted in (
        ("twice", (x, y), {"a": 1, "b": 2}, True),
        ("twice", (x, y), {"b": 2, "a": 1}, True),
        ("twice", (x, y), {"a": 1, "b": 2, "source": "a.py:1"}, True),
        ("twice", (y, x), {"a": 1, "b": 2}, False),
        ("twice", (x, x), {"a": 1, "b": 2}, False),
        ("twice", (x, y, y), {"a": 1, "b": 2}, False),
        ("twice", (x,), {"a": 1, "b": 2}, False),
        ("twice", (x, y), {"a": 1, "b": 3}, False),
        ("twice", (x, y), {"a": 1}, False),
        ("twice", (x, inner), {"a": 1, "b": 2}, False),
    ):
        other = (op, args, attrs)
        texts = [_call_text(*call, names=names) for call in (one, other)]
        ask(lambda c=other: made(*one) is made(*c), given=" is ".join(texts)).equals(wanted)
    either = lambda: mini.make("twice", x, rows=1) is mini.make("signs", x, rows=1)
    ask(either, given='make("twice", x, rows=1) is make("signs", x, rows=1)').equals(False)
    zeros = [mini.make("twice", x, value=value) for value in (0.0, -0.0)]
    if zeros[0] is zeros[1]:
        found = f"one node for both, with value {show(zeros[0]['value'])}"
        question = ask(mini.make, given='"twice", x, value=0.0 and value=-0.0')
        raise question.wrong("two nodes: 1 / 0.0 is not 1 / -0.0", found)


def _call_text(
    op: str, args: tuple[Any, ...], attrs: dict[str, Any], *, names: dict[Any, str]
) -> str:
    given = [f'"{op}"', *(names[a] for a in args), *(f"{k}={v!r}" for k, v in attrs.items())]
    return f"make({', '.join(given)})"
