from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stack.demos.course.answers import ask, lines_run

DOUBLINGS = 12


def _param(student: Any, *shape: int, name: str = "x") -> Any:
    return student.param(student.Type("f32", shape), name)


def check_transpose_rule(student: Any) -> None:
    """the axis rule of a transpose: axis i of the result is axis perm[i] of the operand

    Hint: names are axis_names of the rank. The operand has them in order, the result has
    names[p] for p in perm.
    """
    for perm, wanted in (((1, 0), "a b -> b a"), ((1, 2, 0), "a b c -> b c a")):
        x = _param(student, *range(2, 2 + len(perm)))
        call = lambda p=perm, x=x: str(student.rule_of(student.make("transpose", x, perm=p)))
        ask(call, given=f"rule of transpose(x, perm={perm})").equals(wanted)


def check_reduce_rule(student: Any) -> None:
    """the axis rule of a reduction: the result lacks the axes that are reduced

    Hint: enumerate the names; keep those whose number is not in attrs["axes"].
    """
    for axes, wanted in (((1,), "a b c -> a c"), ((0, 2), "a b c -> b"), ((0, 1, 2), "a b c -> ")):
        x = _param(student, 2, 3, 4)
        call = lambda x=x, a=axes: str(
            student.rule_of(student.make("reduce", x, axes=a, kind="sum"))
        )
        ask(call, given=f"rule of reduce(x, axes={axes})").equals(wanted)


def _shared(student: Any) -> tuple[Any, list[str]]:
    """exp(x) + tanh(exp(x)) * 2, in which exp is used twice."""
    x = _param(student, 3)
    e = student.make("exp", x)
    t = student.make("tanh", e)
    total = student.make("add", e, student.make("mul", t, student.const(2.0)))
    return student.Func("f", (x,), (total,)), ["exp", "tanh", "mul", "add"]


def check_nodes(student: Any) -> None:
    """Func.nodes: each node once, after its operands, without parameters and scalars

    Hint: a function visit(node) that returns if the node is known, visits its args, then stores it
    in a dict. At the end leave out op "param" and "const".
    """
    func, wanted = _shared(student)
    ask(lambda: [n.op for n in func.nodes], given="ops of exp(x) + tanh(exp(x)) * 2").equals(wanted)
    x = _param(student, 3)
    unused = student.make("exp", x)
    used, other = student.make("neg", x), student.make("tanh", x)
    for results, text, ops in (
        ((used, used), "-x and -x", ["neg"]),
        ((used, other), "-x and tanh(x)", ["neg", "tanh"]),
    ):
        func = student.Func("g", (x,), results)
        call = lambda f=func: [n.op for n in f.nodes]
        ask(call, given=f"ops of a function that returns {text}").equals(ops)
    del unused
    node = x
    for _ in range(DOUBLINGS):
        node = student.make("add", node, node)
    func = student.Func("h", (x,), (node,))
    question = ask(lambda: func.nodes, given=f"nodes of {DOUBLINGS} additions y = y + y")
    _, lines = lines_run(student.make, lambda: question.answer("each node visited once"))
    if lines > 50 * DOUBLINGS:
        raise question.wrong("each node visited once", f"{lines} lines of Python executed")


def check_interpret(student: Any) -> None:
    """Func.interpret evaluates the program in NumPy, each node once

    Hint: keep a dict from nodes to values that begins with the parameters. A node with a body calls
    body.interpret; any other calls OPS[node.op].numpy(*args, **dict(node.attrs)).
    """
    rng = np.random.default_rng(10)
    x, w = _param(student, 2, 3), _param(student, 3, 4, name="w")
    product = student.make("dot", x, w, rule="m k, k n -> m n")
    total = student.make("reduce", student.make("tanh", product), axes=(1,), kind="sum")
    func = student.Func("f", (x, w), (total, product))
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    given = "sum(tanh(x @ w), 1) and x @ w, in f64"
    question = ask(lambda: func.interpret(a, b), given=given)
    question.equals([np.tanh(a @ b).sum(1), a @ b], rtol=1e-12)
    swapped = student.Func("g", (w, x), (product,))
    given = "x @ w of a function with the parameters (w, x)"
    ask(lambda: swapped.interpret(b, a), given=given).equals([a @ b])
    inner = _param(student, 2, 3)
    body = student.Func("body", (inner,), (student.make("exp", inner),))
    fusion = student.Node("fusion", (x,), (("kind", "loop"),), x.type, "", body)
    whole = student.Func("h", (x,), (fusion,))
    ask(lambda: whole.interpret(a), given="a fusion whose body is exp(x)").equals([np.exp(a)])
    shared, _ = _shared(student)
    calls: list[int] = []
    exp = student.OPS["exp"]
    student.OPS["exp"] = replace(exp, numpy=lambda x: calls.append(1) or np.exp(x))
    try:
        values = a[0]
        e = np.exp(values)
        question = ask(lambda: shared.interpret(values), given="exp(x) + tanh(exp(x)) * 2")
        question.equals([e + np.tanh(e) * 2])
    finally:
        student.OPS["exp"] = exp
    if len(calls) > 1:
        raise question.wrong("exp computed once", f"exp computed {len(calls)} times")
