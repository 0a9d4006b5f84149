from __future__ import annotations

from typing import Any

import numpy as np

import stack.mini as mini
from stack.demos.course.answers import ask
from stack.demos.course.numpy_program import lowered, traced


def _window(n: int, width: int, sinks: int) -> np.ndarray:
    return np.array([[k <= r and (r - k < width or k < sinks) for k in range(n)] for r in range(n)])


def _picture(mask: Any) -> str:
    lines = ["".join("#" if seen else "." for seen in line) for line in np.atleast_2d(mask)]
    return " ".join(lines)


def check_window(student: Any) -> None:
    """window sees the last keys and the first ones, and never a later one

    Hint: key <= row always. Besides, one of two: row - key < width, or key < sinks.
    """
    row, key = np.arange(6)[:, None], np.arange(6)[None, :]
    for width, sinks in ((1, 0), (3, 0), (2, 1), (1, 6)):
        given = f"row, key of 6 positions, width {width}, sinks {sinks}; # is seen"
        question = ask(student.window, row, key, width, sinks, given=given)
        wanted = _window(6, width, sinks)
        found = question.answer(_picture(wanted))
        if not np.array_equal(np.broadcast_to(found, (6, 6)), wanted):
            raise question.wrong(_picture(wanted), _picture(np.broadcast_to(found, (6, 6))))


def check_attention(student: Any) -> None:
    """attention has the weights of a softmax over the window

    Hint: hide scores with -inf before the softmax, so that the other weights have the sum 1.
    mini has the comparison >= only: row >= key, and key >= row - (width - 1). Subtract the maximum
    of each row before exp, which overflows for large scores and is 0 for scores far below 0.
    """
    rng = np.random.default_rng(17)
    for width, d, is_far in ((1, 4, False), (3, 4, False), (8, 9, False), (3, 4, True)):
        q, k, v = arrays = [rng.standard_normal((8, d)) for _ in range(3)]
        if is_far:
            q[:], k[:] = 100 * np.abs(q), -100 * np.abs(k)
        scores = np.where(_window(8, width, 0), q @ k.T / d**0.5, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        wanted = weights / weights.sum(1, keepdims=True) @ v
        program = lambda q, k, v, w=width: student.attention(q, k, v, w)
        call = lambda p=program, a=arrays: mini.trace(p, *a).interpret(*a)[0]
        far = f", scores about {np.median(q @ k.T / d**0.5):.0f}" if is_far else ""
        given = f"attention(q, k, v, width={width}) of shape (8, {d}){far}"
        with np.errstate(all="ignore"):
            ask(lambda c=call: c(), given=given).equals(wanted)


def check_kernel(student: Any) -> None:
    """the compiler makes one kernel of attention

    Hint: only ops of mini, each once: scores, two where, maximum, exp, sum, division, product. A
    second softmax, or a weight that is used in another way, needs another kernel.
    """
    arrays = [np.zeros((64, 16))] * 3
    program = lambda q, k, v: student.attention(q, k, v, 32)
    call = lambda: lowered(traced(program, *arrays), "fused").func("fused")
    question = ask(call, given="attention(q, k, v, 32), compiled for an H100")
    ops = [n.op for n in question.answer("a program").nodes if n.op not in ("const", "item")]
    if ops != ["stream"]:
        raise question.wrong("one kernel: stream", f"{len(ops)} kernels: {', '.join(ops)}")


def check_blocks(student: Any) -> None:
    """blocks counts those that hide all, none and some

    Hint: mask.reshape(n // size, size, m // size, size).sum((1, 3)) counts what is seen in each.
    """
    for name, mask, size in (
        ("causal, 8 x 8", _window(8, 8, 0), 2),
        ("window of 2, 8 x 8", _window(8, 2, 0), 4),
        ("causal, the first 4 of 8 rows", _window(8, 8, 0)[:4], 4),
        ("all seen, 4 x 4", np.ones((4, 4), bool), 2),
    ):
        tiles = [
            mask[r : r + size, c : c + size]
            for r in range(0, mask.shape[0], size)
            for c in range(0, mask.shape[1], size)
        ]
        empty, full = sum(not t.any() for t in tiles), sum(bool(t.all()) for t in tiles)
        wanted = (empty, full, len(tiles) - empty - full)
        call = lambda m=mask, s=size: tuple(map(int, student.blocks(m, s)))
        ask(call, given=f"blocks(mask {name}, {size})").equals(wanted)
