"""The simulator: formulas where there are some, classes of ranks, records with their sources."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from stack.errors import UsageError
from stack.ir import Func, parse
from stack.mesh.meshes import Mesh, parse_mesh
from stack.sim import Cluster, Link, machine, names, simulate
from stack.sim.costs import compute_seconds, stored_bytes
from stack.sim.machines import fitted
from stack.sim.pipeline import pipeline
from stack.sim.trace import perfetto, pipeline_timeline, timeline

PLAIN = Cluster("plain", "", 1e12, 1e12, 1e12, 1e9, 1.0, 0.0, (Link(1e-6, 1e-9),))


def program(mesh: str, over: str, overlaps: bool = False) -> tuple[Func, Mesh]:
    """A product, a sum over ranks, and another product, of the sum or not."""
    read = "%x" if overlaps else "%s"
    text = f"""func @f(%x: f32[512, 512]) -> (f32[512, 512], f32[512, 512]) at tensor {{
  %y = dot(%x, %x) {{rule="m k, k n -> m n"}} : f32[512, 512]
  %s = all_reduce(%y) {{kind="sum", mesh="{mesh}", over="{over}"}} : f32[512, 512]
  %z = dot({read}, %y) {{rule="m k, k n -> m n"}} : f32[512, 512]
  return %s, %z
}}"""
    return parse(text), parse_mesh(mesh)


def test_products_and_sums_take_what_formulas_say() -> None:
    func, mesh = program("tp=4", "tp")
    product = 2 * 512**3 / 1e12
    total = 6 * 1e-6 + 2 * 3 * (512 * 512 * 4 // 4) * 1e-9
    assert simulate(func, mesh, PLAIN).seconds == pytest.approx(2 * product + total)


def test_what_does_not_wait_overlaps() -> None:
    apart, mesh = program("tp=4", "tp")
    beside, _ = program("tp=4", "tp", overlaps=True)
    waits, hides = simulate(apart, mesh, PLAIN), simulate(beside, mesh, PLAIN, bucket=1)
    assert hides.seconds < waits.seconds
    assert hides.busy("communicate") == pytest.approx(waits.busy("communicate"))


@pytest.mark.parametrize(("flight", "slowed"), [(4.0, 1.0), (0.5, 0.4)])
def test_computation_beside_a_collective_is_slower(flight: float, slowed: float) -> None:
    """The second product is slower until the collective ends, which lasts `flight` products."""
    func, mesh = program("tp=4", "tp", overlaps=True)
    product = 2 * 512**3 / 1e12
    link = Link(flight * product / 6, 0.0)
    machine = replace(PLAIN, links=(link,), beside=1.25)
    found = simulate(func, mesh, machine, bucket=1).busy("compute")
    assert found == pytest.approx((2 + 0.25 * slowed) * product)


@pytest.mark.parametrize(
    ("op", "share"), [("dot(%x, %x)", "sustained"), ("neg(%x)", "memory_share")]
)
def test_work_for_seconds_and_traffic_reach_shares_of_the_rates(op: str, share: str) -> None:
    rule = ' {rule="m k, k n -> m n"}' * op.startswith("dot")
    func = parse(f"""func @f(%x: f32[512, 512]) -> (f32[512, 512]) at tensor {{
  %y = {op}{rule} : f32[512, 512]
  return %y
}}""")
    full = replace(PLAIN, memory_rate=1e18) if rule else PLAIN
    half = replace(full, **{share: 0.5})
    assert compute_seconds(func, half) == pytest.approx(2 * compute_seconds(func, full), rel=1e-3)


def test_ranks_that_are_alike_are_one_class() -> None:
    func, mesh = program("dp=512, tp=8", "tp")
    assert simulate(func, mesh, PLAIN).classes == ((0, 4096),)
    slow = simulate(func, mesh, PLAIN, slow={9: 3.0})
    assert sorted(slow.classes) == [(0, 4088), (8, 7), (9, 1)]
    ends = {e.rank: e.end for e in slow.events if e.stream == "compute"}
    assert ends[8] > ends[0]  # it waits for its neighbour


def test_memory_is_what_values_hold() -> None:
    func, mesh = program("tp=4", "tp")
    found = simulate(func, mesh, PLAIN)
    assert found.peak == 4 * 512 * 512 * 4  # x, y, s and z
    assert found.memory[0] == (0.0, 512 * 512 * 4)


def test_a_segment_stores_its_results_and_an_arena() -> None:
    """All results last until the end; of the two other products one is in memory at a time."""
    func = parse("""func @f(%x: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) at tensor {
  %a = dot(%x, %x) {rule="m k, k n -> m n"} : f32[64, 64]
  %r = dot(%a, %x) {rule="m k, k n -> m n"} : f32[64, 64]
  %b = dot(%r, %x) {rule="m k, k n -> m n"} : f32[64, 64]
  %s = dot(%b, %x) {rule="m k, k n -> m n"} : f32[64, 64]
  return %r, %s
}""")
    assert stored_bytes(func, PLAIN) == 3 * 64 * 64 * 4


@pytest.mark.parametrize(("rows", "kept"), [(8, 8), (1000, 100)])
def test_a_scatter_sums_only_the_rows_that_it_touches(rows: int, kept: int) -> None:
    func = parse(f"""func @f(%i: i64[{rows}], %u: f32[{rows}, 4]) -> (bf16[100, 4]) at tensor {{
  %zero = broadcast(0.0:f32) {{axes=[]}} : f32[100, 4]
  %sum = scatter(%zero, %i, %u) {{kind="add", rule="a! b, i, i b -> a! b"}} : f32[100, 4]
  %made = cast(%sum) : bf16[100, 4]
  return %made
}}""")
    sums, result = kept * 4 * 4, 100 * 4 * 2
    assert stored_bytes(func, PLAIN) == sums + result
    traffic = rows * (8 + 4 * 4) + 7 * sums + result
    assert compute_seconds(func, PLAIN) == pytest.approx(traffic / PLAIN.memory_rate)


def test_far_links_are_slower() -> None:
    func, mesh = program("tp=16", "tp")
    h100 = machine("h100")
    assert simulate(func, mesh, h100).seconds > simulate(*program("tp=8", "tp"), h100).seconds


@pytest.mark.parametrize("name", names())
def test_every_number_has_a_source(name: str) -> None:
    found = machine(name)
    assert all(found.sources.values())
    for link in found.links:
        assert found.sources[f"{link.name}: rate"]
    assert found.links[-1].ranks == 0


def test_the_machines() -> None:
    assert set(names()) >= {"a100", "h100", "h200", "b200", "mi300x", "tpu_v5p"}
    with pytest.raises(UsageError, match="no machine"):
        machine("h1000")


def test_a_link_is_calibrated_from_what_was_measured() -> None:
    times = {size: 5e-6 + size / 100e9 for size in (1 << 10, 1 << 20, 1 << 26)}
    link = machine("h100").calibrated(times).links[0]
    assert link.alpha == pytest.approx(5e-6)
    assert 1 / link.beta == pytest.approx(100e9)
    assert fitted({1: 1e-6, 2: 1e-6}).alpha == pytest.approx(1e-6)


def test_timelines_can_be_opened() -> None:
    found = simulate(*program("dp=2, tp=2", "tp"), PLAIN, slow={1: 2.0})
    events = json.loads(perfetto(found))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(found.events)
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(found.seconds * 1e6)
    for text in (timeline(found), pipeline_timeline(pipeline("1f1b", 4, 8))):
        assert ET.fromstring(text).tag.endswith("svg")


def test_ranks_that_are_none() -> None:
    with pytest.raises(UsageError, match=r"no ranks \[9\]"):
        simulate(*program("tp=4", "tp"), PLAIN, slow={9: 2.0})
