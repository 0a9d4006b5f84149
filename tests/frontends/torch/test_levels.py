"""Graphs of torch's own table of ops are what their text reads as, at every level."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from levels import OPTIONS, reads_back
from torch_opinfo import NoValues, check_op, ops, table

from stack.ir import Func

CHUNKS = 16


@pytest.mark.slow
@pytest.mark.parametrize("backend", OPTIONS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_text_is_lossless(chunk: int, backend: str) -> None:
    def execute(func: Func, arrays: list[np.ndarray]) -> Any:
        reads_back(func, backend)
        raise NoValues

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [op for i, op in enumerate(ops()) if i % CHUNKS == chunk]
        reports = [check_op(op, 1, torch.float32, execute) for op in chosen]
    wrong = [r for r in reports if r.failed]
    assert not wrong, table(wrong)
    assert sum(r.passed for r in reports) > len(chosen) // 3
