from __future__ import annotations

import itertools
import multiprocessing
from typing import Any

import numpy as np

from stack.demos.course.answers import ask


def check_offset(student: Any) -> None:
    """offset is row-major: the C expression of an element's place in memory

    Hint: start with the first index; for each further axis, (what you have) * size + index.
    """
    for shape in ((), (5,), (2, 3), (2, 3, 4)):
        names = tuple(f"i{n}" for n in range(len(shape)))
        question = ask(
            lambda n=names, s=shape: student.offset(n, s), given=f"offset({names}, {shape})"
        )
        text = question.answer("a C expression")
        for index in itertools.product(*map(range, shape)):
            wanted = int(np.ravel_multi_index(index, shape)) if shape else 0
            try:
                found = eval(text, dict(zip(names, index, strict=True)))  # digits, names, + and *
            except (SyntaxError, TypeError, NameError) as error:
                found = f"no number: {error}"
            if found != wanted:
                raise question.wrong(f"{wanted} at index {index}", f"{text!r}, which is {found}")


def _run(compiled: Any, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    """Runs compiled code in a process of its own, since code that writes outside of its arrays can
    end the process. Returns None if it does.
    """
    call = lambda: [np.asarray(a) for a in _as_tuple(compiled(*arrays))]
    if "fork" not in multiprocessing.get_all_start_methods():
        return call()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(call()))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None
    finally:
        process.join()


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _compiled(student: Any, program: Any, arrays: list[np.ndarray], text: str) -> None:
    """Compiles a program and compares its results with the interpreter's in double precision."""
    expected = "the results of the interpreter"
    question = ask(lambda: student.compile(program), given=f"compile({text})")
    found = _run(question.answer(expected), arrays)
    if found is None:
        raise question.wrong(expected, "its process ended: it writes outside of an array")
    wanted = [np.asarray(w) for w in program.interpret(*(a.astype(np.float64) for a in arrays))]
    for have, want in zip(found, wanted, strict=True):
        ask(lambda a=have: a, given=question.given).equals(want, rtol=1e-3)


def _traced(student: Any, fn: Any, shapes: list[tuple[int, ...]], text: str) -> None:
    rng = np.random.default_rng(15)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    _compiled(student, student.trace(fn, *arrays), arrays, text)


def check_elementwise(student: Any) -> None:
    """kernels of elementwise ops, transposes and broadcasts compute the right elements

    Hint: rule.pull gives the index of each operand; self.value(arg, index) is its C expression;
    OPS[node.op].c.format(*args) joins them.
    """
    _traced(student, lambda x: student.exp(x) * 2 + 1, [(4, 3)], "exp(x) * 2 + 1")
    _traced(student, lambda x, y: x.T - y, [(4, 3), (3, 4)], "x.T - y")
    _traced(student, lambda x, y: x / y, [(4, 3), (3,)], "x / y of shapes (4, 3) and (3,)")
    outer = lambda x, y: student.dot("m, n -> m n", x, y)
    _traced(student, outer, [(4,), (3,)], "dot('m, n -> m n', x, y)")


def check_reductions(student: Any) -> None:
    """kernels with reductions: a variable, loops over the reduced axes, one update

    Hint: self.say declares the variable with START[kind]; self.open a loop for each of
    rule.reduced; STEP[kind].format(total, term) is the update. A dot is a sum of products.
    """
    _traced(student, lambda x: student.sum(x, axis=1), [(4, 3)], "sum(x, axis=1)")
    _traced(student, lambda x: student.sum(x), [(4, 3)], "sum(x)")
    largest = lambda x: student.max(-student.exp(x), axis=0)
    _traced(student, largest, [(4, 3)], "max(-exp(x), axis=0)")
    _traced(student, lambda x, w: student.tanh(x @ w), [(4, 3), (3, 5)], "tanh(x @ w)")


def check_attention(student: Any) -> None:
    """attention and its gradient compile, and agree with the interpreter

    Hint: variables that are declared inside of a loop are unknown after it: restore self.known.
    """

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.T / 2.0
        weights = student.exp(scores - student.max(scores, axis=1, keepdims=True))
        return (weights / student.sum(weights, axis=1, keepdims=True)) @ v

    both = lambda x, y: (
        student.sum(student.exp(y) * x, axis=0) + student.sum(student.exp(y) - x, axis=0)
    )
    text = "sum(exp(y) * x, axis=0) + sum(exp(y) - x, axis=0) of shapes (1, 3) and (3,)"
    _traced(student, both, [(1, 3), (3,)], text)
    shapes = [(5, 4), (6, 4), (6, 3)]
    _traced(student, attention, shapes, "softmax(q @ k.T / 2) @ v")
    rng = np.random.default_rng(16)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    loss = lambda q, k, v: student.sum(attention(q, k, v) * attention(q, k, v))
    joint = student.grad(student.trace(loss, *arrays))
    _compiled(student, joint, arrays, "gradient of sum(attention ** 2)")
