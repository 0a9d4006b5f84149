from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stack.demos.course.answers import ask, show


def _with_ops(student: Any) -> Any:
    """The student's module with an op `twice`, whose result has the type of its operand."""
    record = SimpleNamespace(infer=lambda args, attrs: args[0].type)
    student.OPS = {**getattr(student, "OPS", {}), "twice": record}
    return student


def _param(student: Any) -> Any:
    return student.Node("param", (), (("name", "x"),), student.Type("f32", (2, 3)))


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
    ask(lambda: made(), given='make("twice", x, source="a.py:1", b=2, a=1)').equals(wanted)

    def inside() -> str:
        with mini.from_line("b.py:7"):
            return mini.make("twice", x, c=1).source

    ask(lambda: inside(), given='line of make("twice", x, c=1) in from_line("b.py:7")').equals(
        "b.py:7"
    )


def check_interned(student: Any) -> None:
    """make returns the same object for equal nodes, and others for all that differ

    Hint: the key has the op, the arguments and the attributes. 0.0 == -0.0, so put the text of the
    attributes into the key.
    """
    mini, x, y = _with_ops(student), _param(student), _param(student)
    one = ask(lambda: mini.make("twice", x, a=1), given='make("twice", x, a=1)').answer("a node")
    for other, text, wanted in (
        (lambda: mini.make("twice", x, a=1), 'make("twice", x, a=1)', True),
        (lambda: mini.make("twice", y, a=1), 'make("twice", y, a=1)', False),
        (lambda: mini.make("twice", x, a=2), 'make("twice", x, a=2)', False),
        (lambda: mini.make("twice", one, a=1), 'make("twice", make("twice", x, a=1), a=1)', False),
    ):
        given = f'make("twice", x, a=1) is {text}'
        ask(lambda call=other: call() is one, given=given).equals(wanted)
    zeros = [mini.make("twice", x, value=value) for value in (0.0, -0.0)]
    if zeros[0] is zeros[1]:
        found = f"one node for both, with value {show(zeros[0]['value'])}"
        question = ask(mini.make, given='"twice", x, value=0.0 and value=-0.0')
        raise question.wrong("two nodes: 1 / 0.0 is not 1 / -0.0", found)
