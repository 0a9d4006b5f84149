"""Streams to kernels for a CPU: both levels in the interpreter, and what has no such kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from kernel_cases import tile_group
from stream_harness import prepared, streamed
from stream_variants import HIDDEN, masked, normal, variant_inputs

import stack
from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.passes.distribute import distribute_kernel
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.tiling.frame import CannotTile
from stack.rewrite import Pipeline
from stack.rewrite.engine import Replacement, replace
from stack.target import as_cpu, load

torch = pytest.importorskip("torch")
Tensor = Any


def stream_of(program: Callable[..., Any], args: list[Tensor]) -> tuple[Func, Node]:
    func, notes = streamed(prepared(stack.trace(program, *args)), "")
    found = [n for n in func.nodes if n.op == "stream"]
    assert len(found) == 1, notes
    return func, found[0]


def with_kernel(func: Func, stream: Node, kernel: Node) -> Func:
    made = Func(func.name, replace(func.body, {stream: Replacement(kernel)}), func.level)
    verify(made)
    assert parse(str(made)) is made
    return made


def in_panels(stream: Node, keys: int) -> Node:
    """The stream with a schedule of so many keys in a panel; 0 leaves that to the policy."""
    schedule = {"schedule": f"k={keys}@serial"} if keys else {}
    return stream.rebuilt(attrs={**stream.attrs, **schedule})


@pytest.mark.each
@pytest.mark.parametrize(
    ("name", "step"), product(["causal", "gqa", "bias", "differential"], [0, 16, 50])
)
def test_both_levels_agree(name: str, step: int, rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import VARIANTS

    args = variant_inputs(name, rng, 70)
    want = VARIANTS[name](*(a.double() for a in args)).numpy()
    func, stream = stream_of(VARIANTS[name], args)
    tiled = tile_group(in_panels(stream, step))
    for kernel in (tiled, distribute_kernel(tiled)):
        with np.errstate(all="ignore"):
            got = with_kernel(func, stream, kernel).interpret(*(a.numpy() for a in args))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 3, 5, 12, 15])
def test_fewer_rows_than_a_register_has_lanes(rows: int, rng: np.random.Generator) -> None:
    """They fill a part of it; the last ones start early."""
    args = [normal(rng, 2, n, 12) for n in (rows, 40, 40)]
    want = masked(lambda i, j: j > i + 20)(*(a.double() for a in args)).numpy()
    func, stream = stream_of(masked(lambda i, j: j > i + 20), args)
    tiled = tile_group(stream)
    for kernel in (tiled, distribute_kernel(tiled)):
        with np.errstate(all="ignore"):
            got = with_kernel(func, stream, kernel).interpret(*(a.numpy() for a in args))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_steps_of_attention(rng: np.random.Generator) -> None:
    """Rows in lanes, panels of keys, and products in tiles of registers."""
    args = [normal(rng, 2, n, 64) for n in (96, 128, 128)]
    stream = stream_of(masked(lambda i, j: j > i), args)[1]
    steps = [text for text, *_ in CpuStreams(stream, as_cpu(load("avx512"))).made().done[1:]]
    assert "; ".join(steps) == (
        "rewrite powers; split j 64 tail=overlap; bind i cores; bind j.0 cores; split r 64 "
        "tail=peel; block r.1; vectorize j.1; bound r.0 where=cut; sink k r.0 into=u; fission "
        "r.1 c into=s; stage exp2_2 local; stage exp2_3 local; split u 6 tail=peel; fission "
        "u.1 r.1 into=t; stage_mem o0 k; stage_mem p0 c; split s 6 tail=overlap; "
        "microkernel s.1; microkernel t"
    )


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (24, 32)])
def test_a_product_that_all_rows_share_is_a_loop_of_scalars(
    rows: int, columns: int, rng: np.random.Generator
) -> None:
    """A norm with a bias, then a square weight. The bias times the weight has no rows for lanes:
    such a stream had no kernel, and a library took 40 times as long.
    """

    def layer(x: Tensor, scale: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
        return torch.layer_norm(x, [columns], scale, bias) @ weight.T

    shapes = [(rows, columns), (columns,), (columns,), (columns, columns)]
    args = [normal(rng, *shape) for shape in shapes]
    want = layer(*(a.double() for a in args)).numpy()
    func, stream = stream_of(layer, args)
    made = CpuStreams(stream, as_cpu(load("avx2"))).made()
    tiled = [text for text, *_ in made.done if text.startswith("microkernel")]
    assert len(tiled) == 1, "the product with rows is one dot; the one without stays a loop"
    for kernel in (made.kernel, distribute_kernel(made.kernel)):
        got = with_kernel(func, stream, kernel).interpret(*(a.numpy() for a in args))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_norm_before_a_product_says_what_keeps_it_apart(rng: np.random.Generator) -> None:
    """In a stream over the contracted axis, sums of columns of the weights are a state."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (40,)) @ w

    stream = stream_of(program, [normal(rng, 64, 40), normal(rng, 40, 16)])[1]
    with pytest.raises(CannotTile, match="a state of 16 columns is a sum, and no product"):
        tile_group(stream)


def test_one_pass_with_the_correction_outside_of_the_sweeps(rng: np.random.Generator) -> None:
    """A panel: the product, a sweep for the maximum, one for what needs it, the other product.

    That one adds up rows of 32: one loop, as its tiles divide them.
    """
    from stack.demos.gpu_attention import full

    args = [normal(rng, 2, 256, 32) for _ in range(3)]
    kernel = distribute_kernel(tile_group(stream_of(full, args)[1]))
    kinds = [n.attrs["kind"] for _, n in walk(kernel.blocks[0]) if n.op == "loop"]
    assert kinds.count("parallel") == 2 and "grid" not in kinds
    (panels,) = (
        n for _, n in walk(kernel.blocks[0]) if n.op == "loop" and len(n.args) == 3
    )  # carries the maximum, the sum, and the memory of the wide state
    inner = panels.blocks[0].nodes
    ops = [n.op for n in inner if n.op in ("loop", "exp2", "max")]
    assert ops.count("exp2") == 1  # the correction
    loops = [n for n in inner if n.op == "loop"]
    swept = [n for n in loops if any(m.op == "exp2" for _, m in walk(n.blocks[0]))]
    assert len(swept) == 1


def test_a_causal_limit_leaves_panels_out(rng: np.random.Generator) -> None:
    args = [normal(rng, 2, 256, 16) for _ in range(3)]
    for hide, parts in ((lambda i, j: j > i, 2), (lambda i, j: (i - j) % 3 != 0, 0)):
        kernel = tile_group(stream_of(masked(hide), args)[1])
        loops = [n for _, n in walk(kernel.blocks[0]) if n.op == "loop"]
        assert sum(bool(n.attrs.get("limited")) for n in loops) == parts


def hidden_by(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(mask, HIDDEN), -1) @ v


REFUSED: dict[str, tuple[tuple[int, int, int], Any, str]] = {
    "one row": ((1, 130, 16), torch.float32, "it has one row"),
    "double": ((64, 130, 16), torch.float64, "a state is not in f32"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str, rng: np.random.Generator) -> None:
    (rows, keys, width), dtype, why = REFUSED[name]
    args = [normal(rng, 2, n, width).to(dtype) for n in (rows, keys, keys)]
    with pytest.raises(CannotTile, match=why):
        tile_group(stream_of(masked(lambda i, j: j > i + 100), args)[1])


def test_a_bool_mask_in_memory_stays_apart(rng: np.random.Generator) -> None:
    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    mask = torch.from_numpy(rng.random((130, 130)) < 0.5)
    with pytest.raises(CannotTile, match="array of bool is read with strided rows"):
        tile_group(stream_of(hidden_by, [*args, mask])[1])


def test_the_pass_records_the_price_and_leaves_what_does_not_fit(rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import full

    def notes(seq: int, width: int) -> tuple[bool, str]:
        func = prepared(stack.trace(full, *(normal(rng, 2, seq, width) for _ in range(3))))
        result = Pipeline("stream{loops=cpu}").run(func, verbose=True)
        text = "\n".join(note for record in result.records for note in record.notes)
        return result.func is not func, text

    changed, text = notes(1024, 64)
    assert changed and "price: " in text and "M cycles as one loop" in text
    changed, text = notes(12, 12)
    assert changed and "price: " in text
    changed, text = notes(66, 66)
    assert not changed and "is not streamed: it costs" in text


def test_ops_that_a_backend_has_no_code_for_stay_apart(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(torch.tanh(q @ k.mT), -1) @ v

    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    func = prepared(stack.trace(program, *args))
    assert Pipeline("stream{refuse=[erf]}").run(func).func is not func
    result = Pipeline("stream{refuse=[erf,tanh]}").run(func, verbose=True)
    notes = [str(note) for record in result.records for note in record.notes]
    assert result.func is func
    assert any("is not streamed: no code for tanh" in n for n in notes), notes


@pytest.mark.parametrize(("name", "kept"), [("softcap", 1), ("causal", 0), ("full", 0)])
def test_what_is_dear_is_kept_from_one_sweep_to_the_next(
    name: str, kept: int, rng: np.random.Generator
) -> None:
    """In each of the two loops that a causal limit makes; a mask alone is computed again."""
    from stack.demos.gpu_attention import VARIANTS

    args = [normal(rng, 2, 2, 256, 16) for _ in range(3)]
    kernel = tile_group(stream_of(VARIANTS[name], args)[1])
    nodes = [n for _, n in walk(kernel.blocks[0])]
    panels = max(1, sum(bool(n.attrs.get("limited")) for n in nodes))
    assert sum(n.op == "tanh" for n in nodes) == kept * panels
