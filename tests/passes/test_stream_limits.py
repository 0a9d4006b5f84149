"""stream_limits: masks of data tell a stream where to begin and to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack
from stack.ir import Func, parse, verify
from stack.ir.node import walk
from stack.passes.context_parallel import ContextParallel
from stack.rewrite import Pipeline, random_inputs
from stack.run.mesh import simulate
from stack.target import load

torch = pytest.importorskip("torch")
Tensor = Any
PREPARE = "inline,canonicalize,fold,decompose,canonicalize,layout,canonicalize,stream{min_axis=2}"
SIZES = (40, 67)  # queries, keys: no tile divides them


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(hidden, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def documents(q: Tensor, k: Tensor, v: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    return attend(q, k, v, mine[:, None, :, None] != theirs[:, None, None, :])


def later(q: Tensor, k: Tensor, v: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """Places whose time, which is data, has come."""
    return attend(q, k, v, ~(mine[:, None, :, None] >= theirs[:, None, None, :]))


def given(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask[:, None])


def shown(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.where(mask[:, None], q @ k.mT, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
    return attend(q, k, v, columns > rows)


def lengths(q: Tensor, k: Tensor, v: Tensor, count: Tensor) -> Tensor:
    columns = torch.arange(k.shape[-2], dtype=torch.int32)
    return attend(q, k, v, columns[None, None, None, :] >= count[:, None, None, None])


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT + bias, dim=-1) @ v


def arrays(rng: np.random.Generator) -> list[Tensor]:
    rows, columns = SIZES
    shapes = ((2, 3, rows, 16), (2, 3, columns, 16), (2, 3, columns, 16))
    return [torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in shapes]


def gradient(q: Tensor, k: Tensor, v: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """Two masks with one condition, as gradients of attention have."""
    hidden = mine[:, None, :, None] != theirs[:, None, None, :]
    weights = torch.exp((q @ k.mT / 16).masked_fill(hidden, -math.inf))
    return (weights * (q @ v.mT)).masked_fill(hidden, 0) @ k


def ids(rng: np.random.Generator, in_order: bool) -> list[Tensor]:
    drawn = [rng.integers(0, 5, (2, n)) for n in SIZES]
    drawn[1][:, :5] = range(5)  # every row sees something
    return [torch.from_numpy(np.sort(d, axis=1) if in_order else d) for d in drawn]


def mask(rng: np.random.Generator) -> Tensor:
    hidden = rng.random((2, *SIZES)) < 0.9
    hidden[..., 11] = False
    return torch.from_numpy(hidden)


def limited(program: Callable[..., Any], args: list[Tensor]) -> tuple[Func, Func]:
    """Before and after the pass."""
    func = Pipeline(PREPARE).run(stack.trace(program, *args)).func
    assert any(n.op == "stream" for n in func.nodes)
    after = Pipeline("stream_limits{always=true}").run(func).func
    verify(after)
    assert parse(str(after)) is after
    return func, after


def check(program: Callable[..., Any], args: list[Tensor]) -> Func:
    """Values of the stream and of its kernels; gives the kernels."""
    before, after = limited(program, args)
    assert after is not before
    (old,) = (n for n in before.nodes if n.op == "stream")
    (new,) = (n for n in after.nodes if n.op == "stream")
    assert len(new.args) == len(old.args) + 3
    kernels = Pipeline("fuse,blocks").run(after).func
    given_ = [a.numpy() for a in args]
    want = program(*(a.double() if a.is_floating_point() else a for a in args)).numpy()
    with np.errstate(all="ignore"):
        for func in (after, kernels):
            np.testing.assert_allclose(func.interpret(*given_), want, rtol=1e-5, atol=1e-5)
    return kernels


def loops(kernels: Func) -> list[Any]:
    return [n for _, n in walk(kernels.body) if n.op == "loop" and n.attrs["kind"] == "serial"]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("program", [documents, later, gradient])
def test_comparisons_of_data(
    program: Callable[..., Any], in_order: bool, rng: np.random.Generator
) -> None:
    kernels = check(program, [*arrays(rng), *ids(rng, in_order)])
    assert any(n.attrs.get("limited") for n in loops(kernels))


@pytest.mark.parametrize("program", [given, shown])
def test_masks_that_are_given(program: Callable[..., Any], rng: np.random.Generator) -> None:
    hidden = mask(rng)
    kernels = check(program, [*arrays(rng), hidden if program is given else ~hidden])
    assert any(n.attrs.get("limited") for n in loops(kernels))


def test_a_row_that_sees_nothing_is_nan(rng: np.random.Generator) -> None:
    hidden = mask(rng)
    hidden[1, 7] = True
    args = [*arrays(rng), hidden]
    _, after = limited(given, args)
    with np.errstate(all="ignore"):
        found = Pipeline("fuse,blocks").run(after).func.interpret(*(a.numpy() for a in args))
    assert np.isnan(found[1, :, 7]).all()
    assert np.isfinite(np.delete(found, 7, axis=2)).all()


def test_steps_that_are_hidden_are_not_run(rng: np.random.Generator) -> None:
    """Elements of skipped steps are not read: a nan there has no effect."""
    rows = torch.zeros(2, SIZES[0], dtype=torch.int64)
    columns = torch.ones(2, SIZES[1], dtype=torch.int64)
    columns[:, :16] = 0
    args = [*arrays(rng), rows, columns]
    clean = documents(*args).numpy()
    _, after = limited(documents, args)
    for array in args[1:3]:
        array[:, :, 64:] = math.nan
    kernels = Pipeline("fuse,schedule,blocks").run(after, schedules={"*": "m=16 k=16"}).func
    with np.errstate(all="ignore"):
        found = kernels.interpret(*(a.numpy() for a in args))
    np.testing.assert_allclose(found, clean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [16, 128])
def test_tiles_of_parts_of_a_block_or_of_two_blocks(tile: int, rng: np.random.Generator) -> None:
    rows, columns = torch.zeros(2, 200, dtype=torch.int64), torch.ones(2, 300, dtype=torch.int64)
    columns[:, :16] = 0
    args = [torch.from_numpy(rng.standard_normal((2, 3, n, 16))).float() for n in (200, 300, 300)]
    clean = documents(*args, rows, columns).numpy()
    _, after = limited(documents, [*args, rows, columns])
    for array in args[1:]:
        array[:, :, 128:] = math.nan
    schedules = {"*": f"m={tile} k={tile}"}
    kernels = Pipeline("fuse,schedule,blocks").run(after, schedules=schedules).func
    given_ = [a.numpy() for a in (*args, rows, columns)]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(kernels.interpret(*given_), clean, rtol=1e-4, atol=1e-5)


def test_streams_in_branches() -> None:
    """Ring attention merges a part in a branch. Four heads share two of keys, of one sequence."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        function = torch.nn.functional.scaled_dot_product_attention
        return function(q, k, v, is_causal=True, enable_gqa=True)

    func = stack.trace(attention, *(torch.ones(1, heads, 32, 8) for heads in (4, 2, 2)))
    split = ContextParallel("cp=2", batch=("q", "k", "v"), dim=2)
    placed = [*Pipeline("decompose").passes, split, *Pipeline("propagate,reshard").passes]
    whole = Pipeline(placed).run(func).func
    local = Pipeline(f"spmd,ring,{PREPARE}").run(whole).func
    after = Pipeline("stream_limits{always=true}").run(local).func
    branches = [n for n in local.nodes if n.op == "cond"]
    assert all(a.dtype.kind != "b" for n in branches for a in n.args[1:])  # no mask is stored
    counts = [[len(n.args) for _, n in walk(f.body) if n.op == "stream"] for f in (local, after)]
    assert len(counts[0]) == 2 and counts[1] == [count + 3 for count in counts[0]]
    arrays = random_inputs(whole)
    found = simulate(whole, after, arrays).results[0]
    np.testing.assert_allclose(found, func.interpret(*arrays), rtol=1e-5, atol=1e-5)


def test_all_selects_of_a_condition_get_the_limits(rng: np.random.Generator) -> None:
    _, after = limited(gradient, [*arrays(rng), *ids(rng, True)])
    (stream,) = (n for n in after.nodes if n.op == "stream")
    selects = [n for n in stream.blocks[0].nodes if n.op == "select"]
    assert len(selects) == 2 and len({n.args[0] for n in selects}) == 1


@pytest.mark.parametrize("program", [documents, gradient])
def test_blocks_are_as_large_as_tiles(program: Callable[..., Any]) -> None:
    """But not smaller than 64."""
    q, k, v = (torch.empty(4, 16, 4096, 128, device="meta", dtype=torch.bfloat16) for _ in "qkv")
    names = torch.empty(4, 4096, dtype=torch.int64, device="meta")
    func = Pipeline(PREPARE).run(stack.trace(program, q, k, v, names, names)).func
    made = Pipeline("stream_limits,fuse,schedule").run(func, target=load("sm_90")).func
    (stream,) = (n for n in made.nodes if n.op == "stream")
    tile = 128 if program is gradient else 64
    assert f"m={tile}@grid k={tile}@serial" in str(stream.attrs["schedule"])
    assert stream.args[-1].shape[-1] == 4096 // tile


def test_what_positions_tell_stays(rng: np.random.Generator) -> None:
    before, after = limited(causal, arrays(rng))
    assert after is before
    count = torch.tensor([5, 60], dtype=torch.int32)
    before, after = limited(lengths, [*arrays(rng), count])
    assert after is before
    kernels = Pipeline("fuse,blocks").run(after).func
    assert any(n.attrs.get("limited") for n in loops(kernels))


def test_what_hides_nothing_stays(rng: np.random.Generator) -> None:
    bias = torch.from_numpy(rng.standard_normal((3, *SIZES)).astype(np.float32))
    before, after = limited(biased, [*arrays(rng), bias])
    assert after is before


def test_small_work_does_not_pay(rng: np.random.Generator) -> None:
    func = Pipeline(PREPARE).run(stack.trace(documents, *arrays(rng), *ids(rng, True))).func
    assert Pipeline("stream_limits").run(func).func is func


def test_much_work_pays() -> None:
    q, k, v = (torch.empty(4, 16, 4096, 128, device="meta") for _ in range(3))
    names = torch.empty(4, 4096, dtype=torch.int64, device="meta")
    text = str(Pipeline(PREPARE).run(stack.trace(documents, q, k, v, names, names)).func)
    (record,) = Pipeline("stream_limits").run(parse(text)).records
    assert record.changed and "computed first" in record.notes[0]
