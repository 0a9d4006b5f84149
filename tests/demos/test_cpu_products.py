"""Breakdown of the time of products: counts of compiled instructions, and a model of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from executed import needs_avx512

from stack.demos import cpu_products as p
from stack.demos.cpu_rows import product
from stack.measure.cpu import cpu_cases
from stack.measure.inner_loop import InnerLoop
from stack.measure.suite import Case, select
from stack.run.backend import Kernel
from stack.target import cpu_at_hand

pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

COUNTS = p.Counts(multiplies=8_000_000, loads=4_000_000, packed=1 << 20, panels=1 << 24)
MACHINE = p.Machine(2, {"fma": 8e9}, 8e9, {1 << 20: 1e11, 1 << 22: 5e10}, 1e-6)
KERNEL = Kernel("dot", "generated", flops=240e6, bytes=6 << 20)
PRODUCT = p.Product("case", KERNEL, COUNTS, "fma", 32, (5, 64), 12, InnerLoop(40, 18, 0, 4))


def test_parts_add_up() -> None:
    parts = p.parts_of(PRODUCT, MACHINE, 2e-3)
    assert list(parts) == list(p.PARTS)
    assert sum(parts.values()) == pytest.approx(2e-3)
    assert parts["multiply"] == pytest.approx(1e-3)
    assert parts["load"] == 0  # half as many loads as multiplications, at the same rate
    assert parts["memory"] == pytest.approx(2 * (1 << 20) / 1e11)
    assert parts["wait"] == 0
    assert parts["call"] == 1e-6


def test_threads_wait_for_the_last_piece() -> None:
    """Three pieces on two threads take as long as four."""
    parts = p.parts_of(replace(PRODUCT, pieces=3), MACHINE, 2e-3)
    assert parts["wait"] == pytest.approx((parts["multiply"] + parts["memory"]) / 3)
    assert p.parts_of(replace(PRODUCT, pieces=1), MACHINE, 2e-3)["wait"] >= 1e-3


def test_operands_read_in_place_are_moved_once() -> None:
    in_place = replace(PRODUCT, counts=replace(COUNTS, packed=0))
    assert p.parts_of(in_place, MACHINE, 2e-3)["memory"] == pytest.approx((6 << 20) / 1e11)


def test_loads_count_where_they_are_slower() -> None:
    parts = p.parts_of(PRODUCT, replace(MACHINE, loads=2e9), 3e-3)
    assert parts["load"] == pytest.approx(1e-3)


def test_share_of_the_rate() -> None:
    assert p.share_of(PRODUCT, MACHINE, 1.25e-3) == pytest.approx(240e6 / 32 / 8e9 / 1.25e-3)
    reduction = replace(PRODUCT, tile=())
    assert p.share_of(reduction, MACHINE, 1e-3) == pytest.approx((6 << 20) / 1e11 / 1e-3)


def test_copies_of_every_size() -> None:
    assert [MACHINE.copied(s) for s in (0, 1 << 20, (1 << 22) - 1, 1 << 30)] == [
        *[1e11] * 3,
        5e10,
    ]


def test_the_better_of_two_measurements() -> None:
    other = p.Machine(2, {"fma": 4e9}, 9e9, {1 << 20: 2e11, 1 << 22: 4e10}, 2e-6)
    best = p.Machine(2, {"fma": 8e9}, 9e9, {1 << 20: 2e11, 1 << 22: 5e10}, 1e-6)
    assert MACHINE.or_better(other) == other.or_better(MACHINE) == best


def test_a_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "COPIES", (1 << 20,))
    before = p.with_threads(1)
    try:
        found = p.machine_of(1, cpu_at_hand(), [None])
    finally:
        p.with_threads(before)
    assert set(found.multiplies) == {"fma"} and set(found.copies) == {1 << 20}
    assert min(found.multiplies["fma"], found.loads, found.copies[1 << 20], found.call) > 0


def case(rows: int, depth: int, columns: int, dtype: str) -> Case:
    sizes = {"rows": rows, "depth": depth, "columns": columns, "dtype": dtype}
    return Case("C6", sizes, "stack.demos.cpu_rows:product", sizes, frontend="torch")


@needs_avx512
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("rows", [16, 70])
def test_counts_are_those_of_the_assembly(rows: int, dtype: str) -> None:
    """No fewer multiplications than the product has, and loads for each as in the inner loop."""
    cpu = cpu_at_hand()
    graph, storage = p.compiled(case(rows, 2048, 192, dtype))
    executable = graph.executable_for(storage)
    products = p.products_of("", graph, executable, cpu)
    if not products:
        pytest.skip("a library has instructions for it that ours do not use")
    (found,) = products.values()
    least = 2 * rows * 2048 * 192 / found.flops
    # whole tiles of rows, and with an offset a row for each tile
    assert least <= found.counts.multiplies <= 1.5 * least
    if found.loop is None:
        pytest.skip("no disassembler, or not x86-64")
    assert found.loop.stores == 0
    counted = found.counts.loads / found.counts.multiplies
    near = 0.15 if dtype == "i8" else 0.05  # a row of zeros is multiplied outside of that loop
    assert found.loop.loads / found.loop.multiplies == pytest.approx(counted, rel=near)


def test_one_row_is_there_without_counts() -> None:
    graph, storage = p.compiled(case(1, 128, 64, "f32"))
    executable = graph.executable_for(storage)
    (found,) = p.products_of("", graph, executable, cpu_at_hand()).values()
    assert found.tile == () and found.counts == p.Counts()


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Small cases; torch keeps its number of threads."""
    threads = p.with_threads(1)
    monkeypatch.setattr(p, "cpu_cases", lambda: [case(7, 64, 32, "f32"), case(1, 64, 32, "f32")])
    monkeypatch.setattr(p, "machine_of", lambda threads, *_: replace(MACHINE, threads=threads))
    p.main([])
    text = capsys.readouterr().out
    assert "rows=7 depth=64 columns=32 f32 dot" in text and "reduction" in text
    p.main(["--json", "--threads", "1"])
    assert p.with_threads(threads) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["case"].split()[0], r["threads"]) for r in rows] == [("rows=7", 1), ("rows=1", 1)]
    assert all(sum(r["parts_ms"].values()) == pytest.approx(r["ms"]) for r in rows)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_both_frameworks_have_the_same_product(dtype: str) -> None:
    pytest.importorskip("jax")
    found = []
    for frontend in ("torch", "jax"):
        function, args = product(frontend, 3, 40, 5, dtype)
        made = function(*args)
        found.append(np.asarray(made.float() if frontend == "torch" else made, dtype=np.float64))
    tolerance = {"f32": 1e-5, "bf16": 0.05, "i8": 0}[dtype]
    np.testing.assert_allclose(found[1], found[0], rtol=tolerance, atol=tolerance * 10)


def test_cases_cover_what_the_blocks_multiply() -> None:
    cases = select(cpu_cases(), "C6", ["dtype=bf16"])
    assert {c.case["rows"] for c in cases} == {1, 16, 128, 512, 2048}
    assert len(cases) == 37 and len({c.title for c in cases}) == 37
