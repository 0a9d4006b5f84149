"""Schedules: what they mean, what they send, what they compute, what they cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from stack.errors import UsageError
from stack.ops.collectives import ALGORITHMS, Network, Schedule, Transfer, build
from stack.ops.collectives.draw import svg
from stack.ops.collectives.execute import simulate
from stack.ops.collectives.network import Link, bus_bandwidth, fitted, table

POWERS = {"halving", "doubling"}  # algorithms for powers of two
NAMES = sorted(ALGORITHMS)


def schedules(most: int = 9) -> list[Schedule]:
    made: list[Schedule] = []
    for collective, algorithm in NAMES:
        for ranks in range(1, most + 1):
            if algorithm in POWERS and ranks & (ranks - 1):
                continue
            if algorithm == "hierarchical" and ranks % 2:
                continue
            made.append(build(collective, algorithm, ranks))
    return made


def expected(s: Schedule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """By the definition, in f64 or in integers."""
    n = s.ranks
    match s.collective:
        case "all_reduce":
            return [np.sum(inputs, axis=0)] * n
        case "reduce_scatter":
            return list(np.sum(inputs, axis=0).reshape(n, inputs[0].size // n))
        case "all_gather":
            return [np.concatenate([x.ravel() for x in inputs])] * n
        case "all_to_all":
            cut = [x.reshape(n, x.size // n) for x in inputs]
            return [np.stack([c[r] for c in cut]).reshape(inputs[0].shape) for r in range(n)]
        case "broadcast":
            return [inputs[s.root]] * n
        case _:
            return [inputs[s.order.index(r)] for r in range(n)]


@pytest.mark.parametrize("s", schedules(), ids=lambda s: f"{s.collective}-{s.algorithm}-{s.ranks}")
def test_a_schedule_computes_its_collective(s: Schedule) -> None:
    rng = np.random.default_rng(s.ranks)
    for shape in [(0,), (1,), (7,), (3, 5), (64,)]:
        shape = (s.ranks, *shape) if s.collective in ("reduce_scatter", "all_to_all") else shape
        inputs = [rng.integers(-99, 99, shape) for _ in range(s.ranks)]
        before = [x.copy() for x in inputs]
        for found, wanted in zip(simulate(s, inputs), expected(s, inputs), strict=True):
            np.testing.assert_array_equal(found.ravel(), wanted.ravel())
        for x, kept in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("algorithm", [a for c, a in NAMES if c == "all_reduce"])
def test_all_ranks_get_the_same_bits(algorithm: str) -> None:
    s = build("all_reduce", algorithm, 8)
    rng = np.random.default_rng(1)
    found = simulate(s, [rng.standard_normal(1000).astype(np.float32) for _ in range(8)])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_bytes_are_those_of_the_formulas(n: int) -> None:
    size = 5040  # of a rank's input; divides by all chunks
    formulas = {
        ("all_reduce", "ring"): 2 * (n - 1) * size // n,
        ("all_reduce", "two_shot"): 2 * (n - 1) * size // n,
        ("all_reduce", "one_shot"): (n - 1) * size,
        ("reduce_scatter", "ring"): (n - 1) * size // n,
        ("reduce_scatter", "direct"): (n - 1) * size // n,
        ("all_gather", "ring"): (n - 1) * size,
        ("all_to_all", "pairwise"): (n - 1) * size // n,
        ("permute", "shift"): size,
    }
    found = {key: build(*key, n).sent_bytes(size) for key in formulas}
    assert found == formulas
    assert build("all_to_all", "bruck", 8).sent_bytes(size) == 3 * size // 2


def test_a_double_tree_keeps_both_directions_of_all_ports_busy() -> None:
    s = build("all_reduce", "double_tree", 8, chunks=64)
    assert max(s.sent) <= 2 * s.chunks  # one tree alone: three times, from inner ranks
    assert len(s.steps) < s.chunks


@pytest.mark.parametrize("n", [4, 6, 8])
def test_a_hierarchy_sends_less_between_groups(n: int) -> None:
    s = build("all_reduce", "hierarchical", n, group=2)
    beyond = [0] * n
    for t in (t for step in s.steps for t in step if t.source // 2 != t.target // 2):
        beyond[t.source] += len(t.reads)
    many = n // 2
    assert max(beyond) / s.chunks == (many - 1) / many  # of half of the data, twice


class TestWhatIsWrongIsFound:
    def ring(self) -> Schedule:
        return build("all_reduce", "ring", 4)

    def test_a_step_too_few(self) -> None:
        s = self.ring()
        with pytest.raises(UsageError, match=r"chunk . of rank . is chunk"):
            dataclasses.replace(s, steps=s.steps[:-1]).prove()

    def test_a_part_that_is_added_twice(self) -> None:
        s = self.ring()
        with pytest.raises(UsageError, match="is added twice"):
            dataclasses.replace(s, steps=(s.steps[0], *s.steps)).prove()

    def test_two_writers(self) -> None:
        step = (Transfer(0, 2, (0,), (0,)), Transfer(1, 2, (0,), (0,)))
        s = dataclasses.replace(self.ring(), steps=(step,))
        with pytest.raises(UsageError, match=r"step 1.*written twice"):
            s.prove()

    def test_a_slot_that_holds_nothing(self) -> None:
        s = build("all_gather", "ring", 3)
        with pytest.raises(UsageError, match=r"slot . of rank . is empty"):
            dataclasses.replace(s, steps=s.steps[1:]).prove()

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (("all_reduce", "rings", 4), "no algorithm 'rings'.*ring"),
            (("all_redice", "ring", 4), "no collective 'all_redice'.*all_reduce"),
            (("reduce_scatter", "halving", 6), "power of two"),
            (("all_reduce", "ring", 0), "at least one"),
        ],
    )
    def test_a_call(self, call: tuple[Any, ...], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            build(*call)

    def test_options(self) -> None:
        with pytest.raises(UsageError, match="groups of 3"):
            build("all_reduce", "hierarchical", 8, group=3)
        with pytest.raises(UsageError, match="root 9"):
            build("broadcast", "tree", 4, root=9)
        with pytest.raises(UsageError, match="does not divide"):
            simulate(build("reduce_scatter", "ring", 4), [np.zeros(6)] * 4)
        with pytest.raises(UsageError, match="one shape"):
            simulate(self.ring(), [np.zeros(6), np.zeros(5), np.zeros(6), np.zeros(6)])


# ---- the model of time


def test_the_model_counts_as_its_formula_does() -> None:
    network = Network(Link(2e-6, 1e-11))
    size, n = 8 << 20, 8
    ring = network.seconds(build("all_reduce", "ring", n), size)
    assert ring == pytest.approx(2 * (n - 1) * (2e-6 + 1e-11 * size / n))
    small = network.predicted("all_reduce", n, 1024)
    large = network.predicted("all_reduce", n, 1 << 30)
    assert next(iter(small)) == "one_shot"
    assert large["ring"] < large["one_shot"]


def test_slow_links_between_groups_make_a_hierarchy_worth_it() -> None:
    far = Network(Link(1e-6, 1e-11), Link(1e-5, 1e-9), group=4)
    found = far.predicted("all_reduce", 16, 1 << 28)
    assert next(iter(found)) == "hierarchical"


def test_a_fit_finds_what_made_the_times() -> None:
    link = Link(7e-6, 3e-12)
    sizes = [1 << k for k in range(10, 31, 2)]
    found = fitted({s: link.alpha + link.beta * s for s in sizes})
    assert found.alpha == pytest.approx(link.alpha)
    assert found.beta == pytest.approx(link.beta)
    assert fitted({1: 5e-6, 1 << 20: 4e-6}).beta == 0
    with pytest.raises(UsageError, match="two sizes"):
        fitted({1: 1e-6})


def test_bus_bandwidth_of_a_ring_is_that_of_its_link() -> None:
    network, size = Network(Link(0, 1e-11)), 1 << 24
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        seconds = network.seconds(build(collective, "ring", 8), size)
        assert bus_bandwidth(collective, 8, size, seconds) == pytest.approx(1e11)


def test_what_a_person_sees() -> None:
    s = build("all_reduce", "two_shot", 3)
    assert str(s).splitlines()[0] == "all_reduce two_shot: 3 ranks, 3 slots"
    assert "0->1 +[1]" in str(s)
    picture = svg(s)
    messages = sum(len(step) for step in s.steps)
    assert picture.count("marker-end") == messages
    assert table(Network(Link(1e-6, 1e-11)), "all_reduce", 4, [1024]).count("*") == 1
