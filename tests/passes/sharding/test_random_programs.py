"""Random programs with random places on random meshes: parts equal the whole."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from random_programs import random_program
from sharded_cases import MESHES, annotated, partition

from stack.run.mesh import simulate


def check(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"sharded program {seed}")
    program = random_program(seed, rng.choice([4, 8, 14]), small=True)
    if not program.func.params:
        return
    case = annotated(program.func, rng.choice(MESHES), rng)
    if not case.meshes:
        return
    planned, local = partition(case)
    found = simulate(planned, local, program.inputs, filler=77)
    wrong = program.compare(found.results)
    assert not wrong, f"seed {seed}: {wrong}\n{case}{planned}{local}"
    counts.update(found.counts)
    counts["cases"] += 1


@pytest.mark.every(2)
@pytest.mark.parametrize("block", range(3))
def test_parts_equal_the_whole(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * 40, block * 40 + 40):
        check(seed, counts)
    assert counts["cases"] > 20
    assert counts["all_gather"]
    print(dict(counts))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_parts_equal_the_whole_of_many(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1000 + block * 110, 1000 + block * 110 + 110):
        check(seed, counts)
    print(dict(counts))
