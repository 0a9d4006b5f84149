"""Plain programs of both frameworks become one pass, with the values of double precision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_harness import check_tiles, prepared, streamed, streams
from stream_inputs import DOT_PROGRAMS, ROW_PROGRAMS, VARIANTS, inputs

import stack

torch = pytest.importorskip("torch")


def reference(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """In double precision, by torch."""
    from stream_torch import PROGRAMS

    wide = [torch.from_numpy(a) for a in arrays]
    out = PROGRAMS[name](*(w.double() if w.is_floating_point() else w for w in wide))
    return [o.numpy() for o in (out if isinstance(out, tuple) else (out,))]


def captured(framework: str, name: str, arrays: list[np.ndarray]) -> Any:
    if framework == "torch":
        from stream_torch import PROGRAMS

        return stack.trace(PROGRAMS[name], *map(torch.from_numpy, arrays))
    pytest.importorskip("jax")
    from stream_jax import PROGRAMS

    return stack.trace(PROGRAMS[name], *arrays)


@pytest.mark.each
@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", [*DOT_PROGRAMS, *ROW_PROGRAMS])
def test_one_pass_with_the_right_values(
    framework: str, name: str, rng: np.random.Generator
) -> None:
    arrays = inputs(name, rng)
    func, notes = streamed(prepared(captured(framework, name, arrays)))
    found = streams(func)
    assert len(found) == 1, notes
    if name in VARIANTS:
        assert all(n.op in ("stream", "reshape", "const") for n in func.nodes), str(func)
    if name in DOT_PROGRAMS:
        # nothing as long as rows times axis is in memory
        held = [n for n in func.nodes if n.op in ("dot", "reduce") and n.tensor.rank > 1]
        assert len(held) == (name == "bilinear"), str(func)
    check_tiles(func, arrays, reference(name, arrays), 1e-5)


def test_row_programs_that_fit_stay_as_they_are(rng: np.random.Generator) -> None:
    for name in ("softmax", "layer", "loss"):
        func = prepared(captured("torch", name, inputs(name, rng)))
        assert streamed(func, "min_axis=4096")[0] is func


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["plain", "causal", "grouped", "with_lse"])
def test_16_bits_run_in_32(name: str, dtype: str, rng: np.random.Generator) -> None:
    from stream_torch import PROGRAMS

    kind = getattr(torch, dtype)
    args = [torch.from_numpy(a).to(kind) for a in inputs(name, rng)]
    func, notes = streamed(prepared(stack.trace(PROGRAMS[name], *args)))
    (stream,) = streams(func)
    assert {s.dtype.name for s in stream.blocks[0].results} == {"f32"}, notes
    held = [a.float().numpy() for a in args]
    if dtype == "float16":
        held = [a.astype(np.float16) for a in held]
    want = reference(name, [a.float().numpy() for a in args])
    check_tiles(func, held, want, 2e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_masks_of_whole_rows_and_tiles(framework: str, rng: np.random.Generator) -> None:
    """Rows of which all, the first 20 or all but the first are masked; infinite values."""
    x = rng.standard_normal((6, 40)).astype(np.float32)
    x[1], x[2, :20], x[3, 1:] = -np.inf, -np.inf, -np.inf
    x[4, 7], x[5, 3] = np.inf, np.nan
    for name in ("softmax", "log_softmax", "lse", "ties"):
        func, _ = streamed(prepared(captured(framework, name, [x])))
        assert streams(func)
        check_tiles(func, [x], reference(name, [x]), 1e-5)


@pytest.mark.each
@pytest.mark.parametrize("extent", [2, 3, 37, 1000])
@pytest.mark.parametrize("name", ["softmax", "lse", "layer", "entropy", "variance"])
def test_large_offsets(name: str, extent: int, rng: np.random.Generator) -> None:
    """x + 1e4: an error of the order of the rounding of x, as in the two passes of eager."""
    x = (rng.standard_normal((3, extent)) + 1e4).astype(np.float32)
    extra = [np.ones(extent, np.float32)] * 2 if name == "layer" else []
    func, _ = streamed(prepared(captured("torch", name, [x, *extra])))
    assert streams(func)
    near_unit = name in ("layer", "variance")
    check_tiles(func, [x, *extra], reference(name, [x, *extra]), 5e-3 if near_unit else 1e-5)


def test_masked_rows_with_a_dot(rng: np.random.Generator) -> None:
    def pooled(q, k, v, mask):
        return torch.softmax((q @ k.T).masked_fill(~mask, -torch.inf), -1) @ v

    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((6, 8), (31, 8), (31, 4))]
    mask = rng.integers(0, 2, (6, 31)) == 1
    mask[1], mask[2, :20], mask[3, 1:] = False, False, False
    mask[2:, 30], mask[3, 0] = True, True
    args = [torch.from_numpy(a) for a in (*arrays, mask)]
    func, _ = streamed(prepared(stack.trace(pooled, *args)))
    assert streams(func)
    want = pooled(*(a.double() for a in args[:3]), args[3]).numpy()
    assert np.isnan(want[1]).all() and np.isfinite(want[2:]).all()
    check_tiles(func, [*arrays, mask], [want], 1e-5)


def test_rows_without_an_element_are_0_where_the_function_says_so(
    rng: np.random.Generator,
) -> None:
    """The framework's own function gives 0 where all is masked; "all" needs no state."""

    def own(q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    arrays = [rng.standard_normal((2, n, 8)).astype(np.float32) for n in (6, 31, 31)]
    mask = rng.integers(0, 2, (6, 31)) == 1
    mask[1], mask[2, :20], mask[2:, 30] = False, False, True
    args = [torch.from_numpy(a) for a in (*arrays, mask)]
    func, _ = streamed(prepared(stack.trace(own, *args)))
    (stream,) = streams(func)
    assert len(stream.blocks[0].results) == 3
    want = own(*(a.double() for a in args[:3]), args[3]).numpy()
    assert not want[:, 1].any()
    check_tiles(func, [*arrays, mask], [want], 1e-5)


def test_a_long_axis(rng: np.random.Generator) -> None:
    from stack.ir.streaming import interpret_in_tiles

    x = rng.standard_normal((2, 131072)).astype(np.float32)
    func, _ = streamed(prepared(captured("torch", "lse", [x])), "min_axis=16384")
    (stream,) = streams(func)
    (got,) = interpret_in_tiles(stream, [x], 4096, 8)
    np.testing.assert_allclose(got, reference("lse", [x])[0], rtol=1e-6)


def test_no_pass_knows_what_it_derives() -> None:
    folder = Path(__file__).parents[2] / "passes"
    words = re.compile("attention|softmax|flash|query", re.IGNORECASE)
    files = [*folder.glob("stream*.py"), *folder.glob("streaming/*.py")]
    assert len(files) > 10
    for file in files:
        assert not words.search(file.read_text()), file


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("other", ["%x", "%both", "%less"])
def test_distances_from_an_infinite_bound(kind: str, other: str, rng: np.random.Generator) -> None:
    """inf - inf is nan where an element is the bound; other elements are infinitely far from it."""
    func = stack.parse(f"""
func @f(%x: f32[5, 40], %y: f32[5, 40]) -> (f32[5], f32[5]) at tensor {{
  %m = reduce(%x) {{axes=[1], kind="{kind}"}} : f32[5]
  %b = broadcast(%m) {{axes=[0]}} : f32[5, 40]
  %both = add(%x, %y) : f32[5, 40]
  %less = neg(%x) : f32[5, 40]
  %d = sub({other}, %b) : f32[5, 40]
  %s = reduce(%d) {{axes=[1], kind="sum"}} : f32[5]
  %q = mul(%d, %y) : f32[5, 40]
  %t = reduce(%q) {{axes=[1], kind="sum"}} : f32[5]
  return %s, %t
}}""")
    made, notes = streamed(func)
    assert len(streams(made)) == 1, notes
    x, y = rng.standard_normal((2, 5, 40)).astype(np.float32)
    x[1, 7], x[2, 39], x[3], y = np.inf, -np.inf, -np.inf, np.abs(y) + 1
    with np.errstate(invalid="ignore"):
        a = {"%x": x, "%both": x.astype(np.float64) + y, "%less": -x}[other]
        d = a - getattr(x.astype(np.float64), kind)(1)[:, None]
        check_tiles(made, [x, y], [d.sum(1), (d * y).sum(1)], 1e-5)
