from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import ask, equal


def _trace(student: Any, fn: Any, *shapes: tuple[int, ...]) -> Any:
    return student.rewrite(student.trace(fn, *map(np.zeros, shapes)), student.RULES)


def _node(func: Any, op: str) -> Any:
    return next(n for n in func.nodes if n.op == op)


def check_reuse(student: Any) -> None:
    """reuse counts how often each element of an operand is read

    Hint: the sizes of all axes of the node, reduced ones too; multiply those that the operand does
    not have.
    """
    func = _trace(student, lambda x, w: x @ w, (2, 3), (3, 5))
    dot = _node(func, "dot")
    for operand, wanted in ((0, 5), (1, 2)):
        given = f"dot of 2 x 3 and 3 x 5, operand {operand}"
        ask(lambda i=operand: student.reuse(dot, i), given=f"reuse({given})").equals(wanted)
    add = _node(_trace(student, lambda x, y: x + y, (2, 3), (2, 3)), "add")
    ask(lambda: student.reuse(add, 1), given="reuse(x + y, operand 1)").equals(1)
    spread = _node(_trace(student, lambda x, y: x + y, (2, 3), (3,)), "broadcast")
    x, y = (student.param(student.Type("f32", shape), "x") for shape in ((2, 3), (2,)))
    weighted = student.make("dot", x, y, rule="m k, m -> m")
    given = "reuse(dot m k, m -> m of 2 x 3 and 2, operand 1), which is read for each k"
    ask(lambda: student.reuse(weighted, 1), given=given).equals(3)
    given = "reuse(broadcast of 3 to 2 x 3, operand 0)"
    ask(lambda: student.reuse(spread, 0), given=given).equals(2)


def check_legal(student: Any) -> None:
    """legal gives a reason, or "" where a producer may be computed inside of its user

    Hint: movement is free. Then: more than one reader, or reuse above 1. If the user reads the
    producer as two operands, multiply both.
    """
    exp = student.exp
    for text, fn, shapes, producer, user, may in (
        ("exp into tanh(exp(x))", lambda x: student.tanh(exp(x)), [(3,)], "exp", "tanh", True),
        ("exp into exp(x) @ w", lambda x, w: exp(x) @ w, [(2, 3), (3, 5)], "exp", "dot", False),
        ("exp into exp(x) @ w of one column", lambda x, w: exp(x) @ w, [(2, 3), (3, 1)],
         "exp", "dot", True),
        ("dot into exp(x @ w)", lambda x, w: exp(x @ w), [(2, 3), (3, 5)], "dot", "exp", True),
        ("exp into x + exp(y), which is a result too",
         lambda x, y: (x + exp(y), exp(y)), [(3,), (3,)], "exp", "add", False),
        ("broadcast into x + y", lambda x, y: x + y, [(2, 3), (3,)], "broadcast", "add", True),
        ("transpose into x.T, which two ops read",
         lambda x: (exp(x.T), student.tanh(x.T)), [(2, 3)], "transpose", "exp", True),
        ("exp into the broadcast of exp(y)", lambda x, y: x + exp(y), [(2, 3), (3,)],
         "exp", "broadcast", False),
        ("exp into exp(x) + exp(x)", lambda x: exp(x) + exp(x), [(3,)], "exp", "add", True),
        ("exp into x @ exp(w)", lambda x, w: x @ exp(w), [(1, 3), (3, 5)], "exp", "dot", True),
        ("exp into x @ exp(w) of two rows", lambda x, w: x @ exp(w), [(2, 3), (3, 1)],
         "exp", "dot", False),
        ("exp into exp(x) @ exp(x)", lambda x: exp(x) @ exp(x), [(3, 3)], "exp", "dot", False),
    ):  # fmt: skip
        func = _trace(student, fn, *shapes)
        one, other = _node(func, producer), _node(func, user)
        question = ask(
            lambda f=func, a=one, b=other: student.legal(f, a, b), given=f"legal({text})"
        )
        expected = '""' if may else "a reason"
        found = question.answer(expected)
        if not isinstance(found, str) or (found == "") != may:
            raise question.wrong(expected, repr(found))


def check_fuse(student: Any) -> None:
    """fuse keeps the meaning, and makes as few kernels as legal allows

    Hint: with reuse and legal as in the checks above, fuse is right; look at those first.
    """
    rng = np.random.default_rng(14)

    def softmax(x: Any) -> Any:
        weights = student.exp(x - student.max(x, axis=1, keepdims=True))
        return weights / student.sum(weights, axis=1, keepdims=True)

    for text, fn, shapes, kernels in (
        ("softmax(x)", softmax, [(3, 4)], 4),
        ("tanh(exp(x) * 2 + 1)", lambda x: student.tanh(student.exp(x) * 2 + 1), [(5,)], 1),
        ("exp(x @ w + b)", lambda x, w, b: student.exp(x @ w + b), [(2, 3), (3, 4), (4,)], 1),
    ):
        func = _trace(student, fn, *shapes)
        question = ask(lambda f=func: student.fuse(f), given=f"fuse({text})")
        fused = question.answer(f"{kernels} kernels")
        arrays = [rng.standard_normal(shape) for shape in shapes]
        if not equal(func.interpret(*arrays)[0], fused.interpret(*arrays)[0]):
            raise question.wrong("the same result", "other numbers")
        if len(fused.nodes) != kernels:
            names = ", ".join(n.body.name for n in fused.nodes)
            raise question.wrong(f"{kernels} kernels", f"{len(fused.nodes)}: {names}")
