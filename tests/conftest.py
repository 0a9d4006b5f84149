"""Fixtures that all tests share, and the folders of the core's tests."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

os.environ.pop("COLUMNS", None)  # tables are as wide as they are, whatever the terminal
# torch's threads spin for milliseconds behind each op: on the core of the other worker's test
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# JAX's own results are what ours are compared with: LLVM need not optimize each of their programs
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Dynamo collects garbage after each graph, and Python after 700 new objects: a tenth of the suite.
# Here the fixture `young` collects after each module, and Python after many more objects.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
gc.set_threshold(100_000, 20, 100)

TESTS = Path(__file__).parent
# What `pytest -m core` runs, and what it collects: the folders of the compiler itself, without
# frameworks' programs, code of backends and wings.
CORE = (
    *("ir", "rewrite", "schedule", "target", "run"),
    *("passes/text", "passes/steps", "passes/nest"),
)


@cache
def is_core(path: Path) -> bool:
    """True for a file or folder of the core's tests."""
    return any(path.is_relative_to(TESTS / folder) for folder in CORE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m core` imports no other tests, which takes longer than the core's run."""
    if config.option.markexpr != "core" or not collection_path.is_relative_to(TESTS):
        return None
    leads_there = any((TESTS / folder).is_relative_to(collection_path) for folder in CORE)
    return None if leads_there or is_core(collection_path) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the core's tests and the slow cases; skip tests marked `gpu` without a CUDA device."""
    _spread(items)
    for item in items:
        if is_core(item.path) and not item.get_closest_marker("slow"):
            item.add_marker("core")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    why = _no_gpu() if marked else None
    for item in marked:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


def _spread(items: list[pytest.Item]) -> None:
    """Marks the cases as slow that the marks `every` and `each` leave to the sweep."""
    groups: defaultdict[tuple[str, bool], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            on_gpu = item.get_closest_marker("gpu") is not None
            groups[item.nodeid.partition("[")[0], on_gpu].append(item)
    for cases in groups.values():
        every, each = (cases[0].get_closest_marker(name) for name in ("every", "each"))
        kept = cases[:: every.args[0]] if every else _covering(cases) if each else cases
        for item in cases:
            if item not in kept:
                item.add_marker("slow")


def _covering(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Few cases that have each value of each parameter, in many different pairs."""
    values = {case: frozenset(_values(case)) for case in cases}
    pairs = {case: [frozenset(pair) for pair in combinations(values[case], 2)] for case in cases}
    used: Counter[object] = Counter()  # values and pairs of those kept

    def gain(case: pytest.Function) -> tuple[int, int, int]:
        """New values, new pairs, and how rarely those were used: ties go to the first case."""
        new = [sum(v not in used for v in those) for those in (values[case], pairs[case])]
        return new[0], new[1], -sum(used[v] for v in (*values[case], *pairs[case]))

    kept: list[pytest.Function] = []
    while gain(best := max(cases, key=gain))[0]:
        kept.append(best)
        used.update([*values[best], *pairs[best]])
    return kept


def _values(case: pytest.Function) -> Iterator[tuple[str, type, object]]:
    for name, value in case.callspec.params.items():
        try:
            hash(value)
        except TypeError:
            value = id(value)
        yield name, type(value), value


def _no_gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "needs torch and a CUDA device"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device"


@pytest.fixture(scope="module", autouse=True)
def young() -> Iterator[None]:
    """A collection does not walk what all modules before this one left in the process."""
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()


def _seeds(request: pytest.FixtureRequest) -> list[int]:
    """The seeds of this test alone; STACK_SEED picks another stream."""
    return [int(os.environ.get("STACK_SEED", "0")), zlib.crc32(request.node.nodeid.encode())]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test alone; STACK_SEED picks another stream."""
    return np.random.default_rng(_seeds(request))


@pytest.fixture(autouse=True)
def torch_draws(request: pytest.FixtureRequest) -> None:
    """Makes torch's random numbers independent of the tests before this one."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):
        torch.manual_seed(sum(_seeds(request)))


@pytest.fixture(autouse=True)
def untimed_guards() -> None:
    """Dynamo times the guards of each graph for its log, with flushed caches: 25 ms a compile."""
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        setattr(guards, "profile_guard_manager", lambda *_: 0.0)  # noqa: B010
