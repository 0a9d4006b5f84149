from __future__ import annotations

from functools import cache
from typing import Any

from stack.demos.course.answers import Wrong, ask
from stack.demos.gemm_ladder import Rung, check, lowered, matmul
from stack.ir.node import walk

# cached: these take the most time, and many answers give the same schedule
_error = cache(lambda text: check(Rung("coalesced", text, "")))
_lowered = cache(lambda text: lowered(Rung("tensor", text, ""), matmul(256, 256, 512)))


def _schedule(function: Any, wanted: str) -> str:
    """The schedule that a function returns, which must have these words in any order."""
    expected = f"a text of the words {wanted}"
    text = ask(function).answer(expected)
    if not isinstance(text, str) or sorted(text.split()) != sorted(wanted.split()):
        raise ask(function).wrong(expected, text)
    return text


def check_transactions(student: Any) -> None:
    """transactions: 1 along a row, 32 down a column of long rows, and elements may cross a line

    Hint: lane i touches the bytes i * stride to i * stride + size - 1. Byte b is in line b // line;
    count the different lines.
    """
    for stride, size, lanes, line in (
        *((stride, 2, 32, 128) for stride in (2, 4, 8, 8192, 126, 8191)),
        *((0, 4, 32, 128), (12, 8, 32, 128), (4, 4, 16, 32)),
    ):
        wanted = len({(i * stride + b) // line for i in range(lanes) for b in range(size)})
        ask(student.transactions, stride, size, lanes, line).equals(wanted)


def check_coalesced(student: Any) -> None:
    """coalesced has the requested blocks, and computes the product

    Hint: rung `coalesced` of the lesson is "m=32@grid n=32@grid n=1@lane".
    """
    text = _schedule(student.coalesced, "m=16@grid n=32@grid n=1@lane")
    ask(lambda: _error(text), given=text).answer("a schedule that is legal")


def check_tensor(student: Any) -> None:
    """tensor has the requested blocks and stages, and runs on tensor cores

    Hint: rung `tensor` has the form "m=..@grid n=..@grid k=..@serial"; `stages=2` follows.
    """
    text = _schedule(student.tensor, "m=64@grid n=128@grid k=32@serial stages=2")
    question = ask(lambda: _lowered(text), given=text)
    func = question.answer("a schedule that is legal")
    ops = {node.op for _, node in walk(func.body)}
    if "mma_sync" not in ops:
        raise Wrong(text, "mma_sync, the op of tensor cores", f"only {', '.join(sorted(ops))}")
