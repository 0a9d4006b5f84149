"""Windows of memory: which reads of a stream take one, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any
ROWS, COLUMNS = 70, 197


def scored(extra: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A softmax of products with something added that is read from a table."""

    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor, *more: Tensor) -> Tensor:
        row, column = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
        return torch.softmax(q @ k.mT + extra(table, row, column, *more), -1) @ v

    return program


WINDOWS: dict[str, Callable[..., Tensor]] = {
    "columns - rows": lambda t, i, j: t[:, j - i + ROWS - 1],
    "rows - columns": lambda t, i, j: t[:, i - j + COLUMNS - 1],
    "rows + columns": lambda t, i, j: t[:, i + j],
    "2 columns - rows": lambda t, i, j: t[:, 2 * j - i + ROWS - 1],
    "within bounds": lambda t, i, j: t[:, (j - i + ROWS - 1).clamp(0, 10_000)],
}
ELEMENTS: dict[str, Callable[..., Tensor]] = {
    "clipped": lambda t, i, j: t[:, (j - i).clamp(-9, 9) + 9],
    "far apart": lambda t, i, j: t[:, 40 * i + j],
    "turns": lambda t, i, j: t[:, (j + i) % 50],
    "blocks": lambda t, i, j: t.reshape(2, 59, -1)[:, i.clamp(0, 40), j],
}


def drawn(rng: np.random.Generator, dtype: Any = None) -> list[Tensor]:
    shapes = ((2, 2, ROWS, 16), (2, 2, COLUMNS, 16), (2, 2, COLUMNS, 16), (2, 59 * 60 + 59 * 140))
    made = [torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    return [m.to(dtype) for m in made] if dtype else made


def lowered(program: Callable[..., Any], args: list[Tensor], schedule: str = "") -> Func:
    func, notes = streamed(prepared(stack.trace(program, *args)), "min_axis=2,balance=0")
    assert any(n.op == "stream" for n in func.nodes), notes
    made = (
        Pipeline("fuse,schedule,blocks")
        .run(func, schedules={"*": schedule} if schedule else {})
        .func
    )
    verify(made)
    assert parse(str(made)) is made
    return made


def gathers(func: Func) -> list[Node]:
    """Reads of windows inside of kernels."""
    kernels = [n for n in func.nodes if n.op == "kernel"]
    return [n for kernel in kernels for _, n in walk(kernel.blocks[0]) if n.op == "gather"]


def check(func: Func, program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5) -> None:
    got = func.interpret(*((a.float() if a.element_size() == 2 else a).numpy() for a in args))
    if isinstance(got, tuple):
        got, inside = got
        assert inside  # torch's check of indices that are data
    want = program(*(a.double() if a.is_floating_point() else a for a in args)).numpy()
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", WINDOWS)
def test_runs_of_memory(name: str, rng: np.random.Generator) -> None:
    program, args = scored(WINDOWS[name]), drawn(rng)
    func = lowered(program, args)
    assert len(gathers(func)) == 1
    check(func, program, args)
    narrow = drawn(rng, torch.bfloat16)
    check(lowered(program, narrow), program, narrow, 2e-2)


@pytest.mark.parametrize("name", ELEMENTS)
def test_what_no_run_holds_is_read_element_by_element(name: str, rng: np.random.Generator) -> None:
    program, args = scored(ELEMENTS[name]), drawn(rng)
    func = lowered(program, args)
    assert not gathers(func)
    check(func, program, args)


def test_places_that_data_gives_are_read_one_by_one(rng: np.random.Generator) -> None:
    program = scored(lambda t, i, j, moved: t[:, i + moved[None, :]])
    args = [*drawn(rng), torch.from_numpy(rng.integers(0, 50, COLUMNS))]
    func = lowered(program, args)
    assert not gathers(func)
    check(func, program, args)


def test_a_window_is_read_once(rng: np.random.Generator) -> None:
    """64 rows and 64 columns meet 127 elements: 128 are read, none past the table."""
    program = scored(lambda t, i, j: t[:, j - i + 127])
    args = [torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in (
        (1, 2, 128, 16), (1, 2, 128, 16), (1, 2, 128, 16), (2, 255)
    )]  # fmt: skip
    func = lowered(program, args, "m=64 k=64")
    (found,) = gathers(func)
    assert found.args[0].shape == (128,)
    assert found.shape == (64, 64)
    (load,) = (n for n in [found.args[0]] if n.op == "load")
    assert len(load.args) == 5  # memory, two indices, a mask: element 255 is not there
    check(func, program, args)


def test_the_constant_of_an_index_is_added_before_it_is_spread(
    rng: np.random.Generator,
) -> None:
    """LLVM then sees which elements of a thread read the same element: half of the reads."""
    func = lowered(scored(WINDOWS["columns - rows"]), drawn(rng))
    text = str(func)
    before = text[: text.index("= gather(")]
    sums = [line for line in before.splitlines() if "= add(" in line and "i32<" in line]
    assert any(":i32" in line and "x" not in line.split("i32<")[1] for line in sums)
    assert not any(":i32" in line and "x" in line.split("i32<")[1] for line in sums)
