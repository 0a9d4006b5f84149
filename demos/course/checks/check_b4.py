from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import ask


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape) for shape in shapes]


def _agrees(student: Any, fn: Any, wanted: Any, arrays: list[np.ndarray], text: str) -> None:
    """Traces a function and compares its interpretation with NumPy's results."""
    question = ask(lambda: student.trace(fn, *arrays).interpret(*arrays), given=text)
    question.equals([np.asarray(w) for w in wanted])


def check_trace(student: Any) -> None:
    """trace gives parameters their names, and takes one result or a tuple of several

    Hint: inspect.signature(fn).parameters has the names. A result may be a number: _node makes a
    node of it.
    """
    arrays = _arrays((2, 3), (3, 4))
    question = ask(lambda: student.trace(lambda left, right: left @ right, *arrays), given="x @ w")
    made = question.answer("a Func")
    names = lambda: [p["name"] for p in made.params]
    ask(names, given="names of the parameters of lambda left, right").equals(["left", "right"])
    a, b = arrays
    _agrees(student, lambda x, w: x @ w, [a @ b], arrays, "x @ w")
    _agrees(student, lambda x, w: (-x, x @ w), [-a, a @ b], arrays, "the tuple (-x, x @ w)")
    _agrees(student, lambda x, w: (x * 2, 1.0), [a * 2, 1.0], arrays, "the tuple (x * 2, 1.0)")


def check_broadcast(student: Any) -> None:
    """operators broadcast as NumPy does: missing axes, and axes of size 1

    Hint: compare the shapes from the right. `kept` are the axes whose size is the wanted one; the
    others must be 1 and are dropped by a sum.
    """
    for one, other in (((2, 3), (3,)), ((2, 1), (2, 3)), ((1, 3), (2, 1)), ((4, 1, 3), (2, 3))):
        arrays = _arrays(one, other)
        given = f"x - y of shapes {one} and {other}"
        _agrees(student, lambda x, y: x - y, [arrays[0] - arrays[1]], arrays, given)
    _agrees(student, lambda x: 2 - x, [2 - _arrays((3,))[0]], _arrays((3,)), "2 - x")


def check_reductions(student: Any) -> None:
    """sum and max take an axis, a negative axis, or none, and keepdims

    Hint: axis % rank makes a negative axis positive; None means all axes. With keepdims, broadcast
    the result to a shape with 1 in place of each reduced axis.
    """
    arrays = _arrays((2, 3, 4))
    for name, reference in (("sum", np.sum), ("max", np.max)):
        for axis in (None, 0, 1, -1):
            for keepdims in (False, True):
                fn = lambda x, n=name, a=axis, k=keepdims: getattr(student, n)(x, a, k)
                wanted = reference(arrays[0], axis=axis, keepdims=keepdims)
                given = f"{name}(x, axis={axis}, keepdims={keepdims}) of shape (2, 3, 4)"
                _agrees(student, fn, [wanted], arrays, given)


def check_softmax(student: Any) -> None:
    """a program of several lines is traced, and its nodes know their lines

    Hint: pass source=user_line() to every make.
    """

    def softmax(x: Any) -> Any:
        weights = student.exp(x - student.max(x, axis=1, keepdims=True))
        return weights / student.sum(weights, axis=1, keepdims=True)

    arrays = _arrays((3, 5))
    e = np.exp(arrays[0] - arrays[0].max(1, keepdims=True))
    _agrees(student, softmax, [e / e.sum(1, keepdims=True)], arrays, "softmax(x)")
    lost = lambda: [
        n.op
        for n in student.trace(softmax, *arrays).nodes
        if not n.source.startswith("check_b4.py:")
    ]
    question = ask(lost, given="trace of softmax(x)")
    expected = "the user's line, as in check_b4.py:80, at every node"
    if ops := question.answer(expected):
        raise question.wrong(expected, f"no such line at {', '.join(ops)}")
