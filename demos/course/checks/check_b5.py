from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import Wrong, ask, equal, lines_run

DOUBLINGS = 12


def _param(student: Any, *shape: int, name: str = "x") -> Any:
    return student.param(student.Type("f32", shape), name)


def _ops(student: Any, node: Any, params: tuple[Any, ...]) -> list[str]:
    return [n.op for n in student.Func("f", params, (node,)).nodes]


def check_no_op(student: Any) -> None:
    """no_op removes x * 1, x / 1, x - 0 and x + -0.0, on the side where it may

    Hint: a number on the left is neutral for mul and add only. -0.0 + 0.0 is 0.0, so x + 0.0 is not
    x. The result must have the type of the node.
    """
    x = _param(student, 3)
    for op, left, right, applies in (
        ("mul", None, 1.0, True),
        ("mul", 1.0, None, True),
        ("div", None, 1.0, True),
        ("div", 1.0, None, False),
        ("sub", None, 0.0, True),
        ("sub", 0.0, None, False),
        ("sub", None, -0.0, False),
        ("add", None, -0.0, True),
        ("add", -0.0, None, True),
        ("add", None, 0.0, False),
        ("mul", None, 2.0, False),
    ):
        args = [x if value is None else student.const(value) for value in (left, right)]
        node = student.make(op, *args)
        text = f"no_op at {op}({', '.join('x' if v is None else str(v) for v in (left, right))})"
        question = ask(lambda n=node: student.no_op(n), given=text)
        expected = "x" if applies else "None"
        found = question.answer(expected)
        if found is not (x if applies else None):
            raise question.wrong(expected, "None" if found is None else f"a node {found.op}")
    flags = student.make("ge", x, x)
    one = student.const(1.0)
    for text, args in (("x >= x, 1.0", (flags, one)), ("1.0, x >= x", (one, flags))):
        node = student.make("mul", *args)
        question = ask(lambda n=node: student.no_op(n), given=f"no_op at mul({text})")
        if question.answer("None") is not None:
            raise question.wrong("None: the product is f32", f"{flags.op}, which is bool")


def check_transposes(student: Any) -> None:
    """transposes merges two into one, and removes one that changes nothing

    Hint: result axis i of the outer one is axis perm[i] of the inner one, and this is axis
    inner_perm[perm[i]] of x.
    """
    x = _param(student, 2, 3, 4)
    inner = student.make("transpose", x, perm=(1, 2, 0))
    for perm, wanted in (((1, 2, 0), (2, 0, 1)), ((0, 2, 1), (1, 0, 2))):
        outer = student.make("transpose", inner, perm=perm)
        call = lambda n=outer: (student.transposes(n).args[0] is x, student.transposes(n)["perm"])
        given = f"transposes at transpose(transpose(x, (1, 2, 0)), {perm}): of x, perm"
        ask(call, given=given).equals((True, wanted))
    same = student.make("transpose", x, perm=(0, 1, 2))
    ask(lambda: student.transposes(same) is x, given="transposes at perm (0, 1, 2)").equals(True)
    ask(lambda: student.transposes(inner), given="transposes at a single transpose").equals(None)


def check_operand(student: Any) -> None:
    """transposed_operand puts transposes of operands into the rule of the matmul

    Hint: if axis i of the transpose is axis perm[i] of x, then x has at axis p the name that the
    transpose has at perm.index(p).
    """
    rng = np.random.default_rng(12)
    for rule, shapes, perms in (
        ("m k, k n -> m n", ((3, 2), (3, 4)), ((1, 0), None)),
        ("m k, k n -> m n", ((2, 3), (4, 3)), (None, (1, 0))),
        ("b m k, b k n -> b m n", ((3, 5, 2), (3, 4, 5)), ((1, 2, 0), (1, 2, 0))),
    ):
        if perms[0] == (1, 2, 0):  # x is [k b m] in memory, and w is [n b k]
            shapes = ((4, 5, 2), (3, 5, 4))
        x, w = (_param(student, *s, name=n) for s, n in zip(shapes, "xw", strict=True))
        args = [
            a if p is None else student.make("transpose", a, perm=p)
            for a, p in zip((x, w), perms, strict=True)
        ]
        before = student.make("dot", *args, rule=rule)
        given = f"transposed_operand at dot {rule!r} with operands transposed by {perms}"
        question = ask(lambda n=before: student.transposed_operand(n), given=given)
        after = question.answer("a dot of x and w")
        if after is None or after.op != "dot" or after.args != (x, w):
            raise question.wrong("a dot of x and w", getattr(after, "op", None))
        given = f"transposed_operand at dot {after['rule']!r} without a transpose"
        if ask(lambda n=after: student.transposed_operand(n), given=given).answer("None"):
            raise Wrong(given, "None", "a node, so that rewrite never ends")
        arrays = [rng.standard_normal(s) for s in shapes]
        wanted, found = (
            student.Func("f", (x, w), (node,)).interpret(*arrays)[0] for node in (before, after)
        )
        if wanted.shape != found.shape or not equal(wanted, found):
            raise question.wrong("the same product", f"other numbers, by rule {after['rule']!r}")


def check_rewrite(student: Any) -> None:
    """rewrite applies rules until none matches, keeps lines, and logs each rewrite

    Hint: a rule gets a node whose operands are rewritten already. What it returns may match another
    rule: visit it. Keep source=node.source when you make a node again. Store what each node became,
    since a node may have several readers.
    """
    x = _param(student, 3)
    node = x
    for _ in range(6):
        node = student.make("neg", node)
    node = student.make("mul", node, student.const(1.0))
    node = student.make("exp", node, source="user.py:5")
    func, log = student.Func("f", (x,), (node,)), []
    rules = [student.no_op, student.double_negation]
    question = ask(
        lambda: student.rewrite(func, rules, log),
        given="exp(------x * 1.0), rules of -(-x) and x * 1",
    )
    after = question.answer("exp(x)")
    if [n.op for n in after.nodes] != ["exp"]:
        raise question.wrong("ops ['exp']", [n.op for n in after.nodes])
    if after.nodes[0].source != "user.py:5":
        raise question.wrong("line user.py:5 at exp", after.nodes[0].source or "no line")
    if len(log) != 4:
        raise question.wrong("4 lines in the log", f"{len(log)} lines")
    matrix = _param(student, 2, 3)
    twice = student.make("transpose", student.make("transpose", matrix, perm=(1, 0)), perm=(1, 0))
    merged = student.Func("h", (matrix,), (twice,))
    call = lambda: _ops(
        student, student.rewrite(merged, [student.transposes]).results[0], (matrix,)
    )
    ask(call, given="ops of x.T.T: merged, then removed").equals([])
    _check_shared(student)
    plus = student.make("add", x, student.const(0.0))
    other = student.Func("g", (x,), (plus,))
    call = lambda: _ops(student, student.rewrite(other, rules).results[0], (x,))
    ask(call, given="ops of x + 0.0, which no rule matches").equals(["add"])


def _check_shared(student: Any) -> None:
    """All results are rewritten, with their attributes and what a rule returns; each node once."""
    x = _param(student, 2, 3)
    neg = lambda node: student.make("neg", node)
    total = student.make("reduce", student.make("exp", neg(neg(x))), axes=(1,), kind="sum")
    func = student.Func("f", (x,), (neg(neg(x)), total))
    question = ask(
        lambda: student.rewrite(func, [student.double_negation]), given="-(-x) and sum(exp(-(-x)))"
    )
    after = question.answer("x and sum(exp(x))")
    if [n.op for n in after.nodes] != ["exp", "reduce"] or after.results[0] is not x:
        raise question.wrong("ops ['exp', 'reduce']", [n.op for n in after.nodes])
    if after.results[1].attrs != total.attrs:
        raise question.wrong(f"attributes {total.attrs} of the sum", str(after.results[1].attrs))

    def tanh_of_negations(node: Any) -> Any:
        return student.make("tanh", neg(neg(node.args[0]))) if node.op == "exp" else None

    made = student.Func("g", (x,), (student.make("exp", x),))
    rules = [tanh_of_negations, student.double_negation]
    given = "exp(x), rules that make tanh(-(-x)) of it, and x of -(-x)"
    call = lambda: [n.op for n in student.rewrite(made, rules).nodes]
    ask(call, given=given).equals(["tanh"])
    node = x
    for _ in range(DOUBLINGS):
        node = student.make("add", node, node)
    doubled = student.Func("h", (x,), (node,))
    question = ask(
        lambda: student.rewrite(doubled, [student.no_op]),
        given=f"rewrite of {DOUBLINGS} additions y = y + y",
    )
    _, lines = lines_run(student.make, lambda: question.answer("each node visited once"))
    if lines > 200 * DOUBLINGS:
        raise question.wrong("each node visited once", f"{lines} lines of Python executed")
