"""Partitioned programs on gloo processes: what they compute, and ranks that disagree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from op_instances import instance
from random_programs import Program, random_program
from sharded_blocks import TENSOR_PARALLEL, layers
from sharded_cases import annotated, differences, function, partition
from sharded_ranks import differ, misbehave, run

from stack.errors import StackError
from stack.ir import Func
from stack.ir.files import large_constants
from stack.ir.node import walk
from stack.mesh.meshes import parse_mesh
from stack.mesh.sharding import replicated
from stack.passes.annotate import Annotate
from stack.rewrite import Pipeline, random_inputs
from stack.run.mesh import parts_of, whole_of
from stack.run.ranks import Ranks

MESHES = tuple(map(parse_mesh, ("a=4", "a=2, b=2")))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, str]]:
    """Four processes, and where they meet."""
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    with Ranks(4, ["torch", "sharded_ranks"], limit=500) as ranks:
        yield ranks, store


Cases = list[tuple[Func, list[np.ndarray]]]


def on_gloo(cases: Cases, pool: tuple[Ranks, str], backend: str = "") -> list[list[np.ndarray]]:
    """Whole results of annotated functions, each computed by 4 processes."""
    sent, placed = [], []
    for func, arrays in cases:
        planned, local = partition(func)
        mesh = planned.meshes[0]
        by_param = [
            parts_of(a, p.tensor.sharding or replicated(mesh, p.tensor.rank), filler=77)
            for p, a in zip(planned.params, arrays, strict=True)
        ]
        parts = [[held[rank] for held in by_param] for rank in range(4)]
        data = {name: held.array for name, held in large_constants([local]).items()}
        sent.append((mesh.sizes_text, str(local), data, parts))
        placed.append(planned)
    ranks, store = pool
    found = ranks.run(run, store, sent, backend)
    return [
        [
            whole_of([found[rank][case][i] for rank in range(4)], r.tensor, planned.meshes[0])
            for i, r in enumerate(planned.results)
        ]
        for case, planned in enumerate(placed)
    ]


def sharded_program(seed: int) -> tuple[Program, Func] | None:
    """A random program of types that NumPy and torch share, with places."""
    rng = random.Random(f"gloo {seed}")
    program = random_program(seed, rng.choice([4, 8]), small=True)
    types = [type_ for _, node in walk(program.func.body) for type_ in node.types]
    if any(type_.dtype.name in ("bf16", "u16", "u32", "u64") for type_ in types):
        return None
    case = annotated(program.func, rng.choice(MESHES), rng)
    return (program, case) if case.meshes else None


def check(seeds: range, pool: tuple[Ranks, str]) -> None:
    found = [case for seed in seeds if (case := sharded_program(seed)) is not None]
    block, wanted, arrays = transformer()
    cases = [(block, arrays), *((case, program.inputs) for program, case in found)]
    first, *results = on_gloo(cases, pool)
    print(f"{len(found)} random programs on 4 processes")
    assert len(found) >= len(seeds) // 2
    assert np.abs(first[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    for (program, case), made in zip(found, results, strict=True):
        wrong = program.compare(made)
        assert not wrong, f"{wrong}\n{case}"


def windows() -> list[tuple[Func, Func, list[np.ndarray]]]:
    """Nodes that read over borders of parts: functions, with places, and arrays."""
    rng = random.Random("gloo windows")
    found: list[tuple[Func, Func, list[np.ndarray]]] = []
    while len(found) < 12:
        made = instance(rng.choice(("slice", "pad", "conv", "reverse")), rng)
        if made is None or made[0].dtype.name not in ("f32", "f64", "i32", "i64", "bool"):
            continue
        func = function(made[0])
        case = annotated(func, rng.choice(MESHES), rng)
        if case.meshes and any(node.op == "halo" for node in partition(case)[1].nodes):
            found.append((func, case, list(made[1])))
    return found


def test_halos(pool: tuple[Ranks, str]) -> None:
    cases = windows()
    results = on_gloo([(case, arrays) for _, case, arrays in cases], pool)
    for (func, case, arrays), made in zip(cases, results, strict=True):
        wrong = differences(func.interpret(*arrays), made, [r.dtype.name for r in func.results])
        assert not wrong, f"{wrong}\n{case}"


def transformer() -> tuple[Func, np.ndarray, list[np.ndarray]]:
    """Two layers, data and tensor parallel, with what they compute."""
    func = layers(2)
    shard = ("x: dp", *TENSOR_PARALLEL, "return: dp")
    arrays = random_inputs(func)
    case = Pipeline([Annotate("dp=2, tp=2", shard)]).run(func).func
    return case, func.interpret(*arrays), arrays


def test_programs(pool: tuple[Ranks, str]) -> None:
    check(range(12), pool)


def test_segments_are_compiled(pool: tuple[Ranks, str]) -> None:
    """Results of compiled segments are written over by sums that nobody else waits for."""
    block, wanted, arrays = transformer()
    ((made,),) = on_gloo([(block, arrays)], pool, "mlir")
    assert np.abs(made - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.slow
def test_many_programs(pool: tuple[Ranks, str]) -> None:
    check(range(5000, 5200), pool)


def test_ranks_that_differ_are_told(pool: tuple[Ranks, str]) -> None:
    for program, world in pool[0].run(differ, pool[1]):
        assert program == "ranks [3] were given another program than rank 0"
        assert world.startswith("mesh m(tp=3) has 3 ranks, the world 4: give it axes whose")


@pytest.mark.parametrize(("kind", "said"), [("dies", "rank [01]"), ("late", "rank 0.*no answer")])
def test_a_rank_that_does_not_answer_ends_the_run(kind: str, said: str, tmp_path: Path) -> None:
    """The waiting rank gets an error within the limit, and no process is left."""
    with Ranks(2, ["torch"], limit=30) as ranks:
        processes = list(ranks.processes)
        with pytest.raises(StackError, match=said):
            ranks.run(misbehave, str(tmp_path / "store"), kind, 3.0)
        assert not any(process.is_alive() for process in processes)
