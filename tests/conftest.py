"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

os.environ.pop("COLUMNS", None)  # tables are as wide as they are, whatever the terminal
# torch's threads spin for milliseconds behind each op: on the core of the other worker's test
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where no CUDA device is."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    why = _no_gpu() if marked else None
    for item in marked:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


def _no_gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "needs torch and a CUDA device"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device"


@pytest.fixture(scope="module", autouse=True)
def young() -> Iterator[None]:
    """A collection inside of a test does not walk what all tests before it left in the process."""
    gc.freeze()
    yield
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
