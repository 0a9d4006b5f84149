from __future__ import annotations

import ast
import inspect
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import numpy as np
import torch

from stack.demos.course.answers import Wrong, ask

UNTOUCHED = 777.0


def check_programs(student: Any) -> None:
    """programs rounds up

    Hint: -(-n // block), or (n + block - 1) // block.
    """
    for n, block in ((10, 4), (8, 4), (1, 4), (0, 4), (1000, 128)):
        ask(student.programs, n, block).equals(-(-n // block))


def check_axpy(student: Any) -> None:
    """axpy_kernel computes a x + y in all blocks

    Hint: at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK).
    """
    for n, block in ((4, 4), (10, 4), (64, 16)):
        x, y, out = (torch.arange(float(n)), torch.ones(n), torch.full((n + 8,), UNTOUCHED))

        def call(n: int = n, block: int = block, x: Any = x, y: Any = y, out: Any = out) -> Any:
            student.axpy_kernel[(-(-n // block),)](3.0, x, y, out, n, BLOCK=block)
            return out[:n].numpy()

        given = f"axpy_kernel(3.0, 0 .. {n - 1}, ones, out, {n}), blocks of {block}"
        ask(lambda c=call: c(), given=given).equals((3 * x + y).numpy())


def check_axpy_mask(student: Any) -> None:
    """axpy_kernel writes and reads nothing behind the last element

    Hint: mask=at < n, in the loads and in the store.
    """
    n = 10
    x, y, out = torch.ones(n + 8), torch.ones(n + 8), torch.full((n + 8,), UNTOUCHED)
    x[n:], y[n:] = torch.inf, -torch.inf  # their sum is invalid, so that NumPy tells

    def call() -> np.ndarray:
        with np.errstate(invalid="raise"):
            student.axpy_kernel[(3,)](3.0, x, y, out, n, BLOCK=4)
        return out[n:].numpy()

    given = "elements behind the last one, after axpy_kernel of 10 elements in blocks of 4, with"
    given += " inf behind x and -inf behind y, which are not to be read"
    ask(lambda: call(), given=given).equals(np.full(8, UNTOUCHED, np.float32))
    _masks(student.axpy_kernel)


def _masks(kernel: Any) -> None:
    """Raises Wrong for a load or a store without a mask. The last row ends where the memory may
    end, so it is too late to hide numbers after they are loaded.
    """
    for call in ast.walk(ast.parse(inspect.getsource(kernel.fn))):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        before = {"load": 1, "store": 2}.get(call.func.attr)  # arguments before the mask
        if before is None or len(call.args) > before:
            continue
        if "mask" not in {keyword.arg for keyword in call.keywords}:
            raise Wrong(f"{kernel.__name__}: {ast.unparse(call)}", "a mask", "none")


def _softmax(student: Any, x: torch.Tensor, columns: int, block: int, given: str) -> None:
    """Compares the kernel with torch.softmax, and looks at what is beside the columns."""
    out = torch.full(x.shape, UNTOUCHED)

    def call() -> np.ndarray:
        grid = (x.shape[0],)
        student.softmax_kernel[grid](x, out, x.stride(0), columns, BLOCK=block)
        return out.numpy()

    wanted = torch.full(x.shape, UNTOUCHED)
    wanted[:, :columns] = torch.softmax(x[:, :columns], -1)
    ask(lambda: call(), given=f"softmax_kernel({given})").equals(wanted.numpy(), rtol=1e-5)


def check_softmax(student: Any) -> None:
    """softmax_kernel computes every row, for any number of columns

    Hint: hidden elements must not count: other=-float("inf") makes their exp 0.
    """
    generator = torch.Generator().manual_seed(18)
    for rows, columns, block in ((2, 4, 4), (3, 5, 8), (2, 1, 2)):
        x = torch.rand(rows, columns, generator=generator) - 3
        _softmax(student, x, columns, block, f"{rows} x {columns}, BLOCK={block}")


def check_softmax_large(student: Any) -> None:
    """softmax_kernel does not overflow

    Hint: exp(100) is infinite in f32. Subtract the maximum of the row first.
    """
    x = torch.tensor([[200.0, 100.0, 0.0, -100.0], [1e4, 1e4, 0.0, 0.0]])
    _softmax(student, x, 4, 4, "rows 200, 100, 0, -100 and 10000, 10000, 0, 0")


def check_softmax_stride(student: Any) -> None:
    """softmax_kernel uses the stride, and neither writes nor reads what is beside the columns

    Hint: row r begins at element r * stride. Load and store with the mask.
    """
    generator = torch.Generator().manual_seed(19)
    x = torch.rand(3, 8, generator=generator)
    _softmax(student, x, 5, 8, "5 columns of an array of 3 x 8, BLOCK=8")
    _masks(student.softmax_kernel)
