from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import ask, equal, show


def _check(student: Any, fn: Any, shapes: list[tuple[int, ...]], text: str) -> None:
    """Compares the gradients of a function with differences in double precision."""
    rng = np.random.default_rng(13)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    func = student.trace(fn, *arrays)
    question = ask(lambda: student.grad(func).interpret(*arrays), given=f"gradient of {text}")
    found = question.answer("the value, and a gradient for each parameter")
    if len(found) != 1 + len(arrays):
        raise question.wrong(f"{1 + len(arrays)} results", f"{len(found)} results")
    if not equal(func.interpret(*arrays)[0], found[0]):
        raise question.wrong(f"value {show(func.interpret(*arrays)[0])}", show(found[0]))
    for number, array in enumerate(arrays):
        wanted = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            moved = [[a.copy() for a in arrays] for _ in range(2)]
            moved[0][number][at] += 1e-6
            moved[1][number][at] -= 1e-6
            up, down = (func.interpret(*m)[0] for m in moved)
            wanted[at] = (up - down) / 2e-6
        if found[1 + number].shape != wanted.shape or not np.allclose(
            found[1 + number], wanted, rtol=1e-5, atol=1e-6
        ):
            name = func.params[number]["name"]
            raise question.wrong(f"{show(wanted)} by {name}", show(found[1 + number]))


def check_chain(student: Any) -> None:
    """a chain of ops and a matmul: agrees with differences in double precision

    Hint: gradients = {loss: const(1.0)}. For each node backwards, rule(node, gradients[node]) has
    the gradients of its args.
    """
    _check(student, lambda x: student.sum(student.tanh(x * 2)), [(3,)], "sum(tanh(2 x))")
    _check(
        student, lambda x, w: student.sum(student.exp(x @ w)), [(2, 3), (3, 2)], "sum(exp(x @ w))"
    )


def check_several_uses(student: Any) -> None:
    """the gradients of a value that is used more than once are added

    Hint: an operand may have a gradient already: make("add", known, given).
    """
    _check(student, lambda x: student.sum(x * x), [(3,)], "sum(x * x)")
    _check(
        student,
        lambda x: student.sum(student.exp(x) * x + x / student.sum(student.exp(x))),
        [(4,)],
        "sum(exp(x) x + x / sum(exp(x)))",
    )


def check_unused(student: Any) -> None:
    """a parameter that the result does not need has a gradient of zeros, of its shape

    Hint: gradients.get(p, const(0.0)), and _full gives it the shape of the parameter.
    """
    _check(student, lambda x, y: student.sum(x), [(3,), (2, 2)], "sum(x), by x and y")


def check_branches(student: Any) -> None:
    """comparisons have no gradient, and nodes of the gradient have the lines of the program

    Hint: skip nodes that no gradient arrives at, and operands whose gradient is None. `with
    from_line(node.source)` gives new nodes the line of `node`.
    """
    fn = lambda x: student.sum(student.where(student.exp(x) >= 1.0, x * x, -x))
    _check(student, fn, [(4,)], "sum(where(exp(x) >= 1, x * x, -x))")
    func = student.trace(lambda x: student.sum(student.tanh(x)), np.zeros(3))
    question = ask(lambda: student.grad(func), given="lines of the gradient of sum(tanh(x))")
    found = question.answer("a line at every node")
    if lost := [n.op for n in found.nodes if not n.source]:
        raise question.wrong("a line at every node", f"none at {', '.join(lost)}")


def check_errors(student: Any) -> None:
    """only a scalar has a gradient: MiniError says so for other results

    Hint: `if loss.shape: raise MiniError(...)`.
    """

    func = student.trace(lambda x: x * 2, np.zeros(3))
    ask(lambda: student.grad(func), given="grad of 2 x of shape (3,)").refuses(student.MiniError)
