from __future__ import annotations

import re
from typing import Any

from stack.demos.course.answers import Wrong, ask
from stack.demos.gemm_ladder import Rung, check, lowered, matmul
from stack.ir.node import walk


def _blocks(text: str) -> dict[str, int]:
    return {f"{axis}@{kind}": int(n) for axis, n, kind in re.findall(r"(\w)=(\d+)@(\w+)", text)}


def _schedule(function: Any, wanted: dict[str, int]) -> str:
    """The schedule that a function returns, which must have these blocks."""
    text = ask(function).answer(str(wanted))
    if _blocks(text) != wanted:
        raise ask(function).wrong(str(wanted), text)
    return text


def check_transactions(student: Any) -> None:
    """transactions: 1 along a row, 32 down a column of long rows, and elements may cross a line

    Hint: lane i touches the bytes i * stride to i * stride + size - 1. Byte b is in line b // 128;
    count the different lines.
    """
    for stride, size in ((2, 2), (4, 2), (8, 2), (8192, 2), (126, 2), (8191, 2), (0, 4), (12, 8)):
        wanted = len({(i * stride + b) // 128 for i in range(32) for b in range(size)})
        ask(student.transactions, stride, size).equals(wanted)


def check_coalesced(student: Any) -> None:
    """coalesced has the requested blocks, and computes the product

    Hint: rung `coalesced` of the lesson is "m=32@grid n=32@grid n=1@lane".
    """
    text = _schedule(student.coalesced, {"m@grid": 16, "n@grid": 32, "n@lane": 1})
    ask(lambda: check(Rung("coalesced", text, "")), given=text).answer("a schedule that is legal")


def check_tensor(student: Any) -> None:
    """tensor has the requested blocks and stages, and runs on tensor cores

    Hint: rung `tensor` has the form "m=..@grid n=..@grid k=..@serial"; `stages=2` follows.
    """
    text = _schedule(student.tensor, {"m@grid": 64, "n@grid": 128, "k@serial": 32})
    if "stages=2" not in text.split():
        raise ask(student.tensor).wrong("stages=2", text)
    question = ask(lambda: lowered(Rung("tensor", text, ""), matmul(256, 256, 512)), given=text)
    func = question.answer("a schedule that is legal")
    ops = {node.op for _, node in walk(func.body)}
    if "mma_sync" not in ops:
        raise Wrong(text, "mma_sync, the op of tensor cores", f"only {', '.join(sorted(ops))}")
