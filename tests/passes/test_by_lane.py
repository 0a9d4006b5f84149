"""Tiles of windows of single channels: what registers hold, and windows that share nothing."""

from __future__ import annotations

import pytest

from stack.ir import parse
from stack.passes.cpu_products.gemm import tile_of
from stack.target import Cpu, load


def tile(window: int, by: int, places: int, channels: int, target: str) -> tuple[int, int]:
    """Rows and columns of the tile of a product of such windows along a line."""
    size = (places - 1) * by + window
    func = parse(f"""func @f(%x: f32[1, {size}, {channels}], %w: f32[{channels}, {window}])
      -> (f32[1, {places}, {channels}]) at tensor {{
      %u = unfold(%x) {{axis=1, dilation=[1], stride=[{by}], window=[{window}]}}
        : f32[1, {places}, {window}, {channels}]
      %z = dot(%u, %w) {{rule="n s k o, o k -> n s o"}} : f32[1, {places}, {channels}]
      return %z
    }}
    """)
    cpu = load(target)
    assert isinstance(cpu, Cpu)
    return tile_of(func.results[0], cpu)


@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("window, by", [(3, 1), (5, 2), (7, 1), (31, 1)])
@pytest.mark.parametrize("places", [7, 14, 56])
def test_sums_taps_and_a_place_are_in_registers(
    window: int, by: int, places: int, target: str
) -> None:
    cpu = load(target)
    assert isinstance(cpu, Cpu)
    rows, lanes = tile(window, by, places, 96, target)
    vectors = lanes // cpu.lanes
    assert vectors * (rows + cpu.taps(window) + 1) <= cpu.registers
    assert rows <= places


def test_rows_divide_a_line_where_they_can() -> None:
    assert tile(7, 1, 28, 192, "avx512") == (14, 16)
    assert tile(7, 1, 7, 192, "avx512") == (7, 32)  # two vectors: more sums at a time


def test_windows_that_only_touch_have_the_tiles_of_products() -> None:
    assert tile(3, 3, 28, 192, "avx512") == tile(5, 5, 28, 192, "avx512") == (4, 64)
