"""Fixtures that all tests share."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test alone; STACK_SEED picks another stream."""
    seed = int(os.environ.get("STACK_SEED", "0"))
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])
