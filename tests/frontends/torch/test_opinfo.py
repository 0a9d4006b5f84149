"""Torch's own table of ops: every op that has a lowering gives what eager gives."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch_opinfo import Report, check_op, full_name, ops, table

CHUNKS = 16
NATIVE = frozenset(Path(__file__).with_name("native_ops.txt").read_text().split())

# (op, samples): eager's own error is as large; sums in another order
KNOWN = {"nn.functional.multi_head_attention_forward": 2}


def sweep(chunk: int, limit: int | None, dtype: torch.dtype) -> list[Report]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [op for i, op in enumerate(ops(dtype)) if i % CHUNKS == chunk]
        return [check_op(op, limit, dtype) for op in chosen]


def hold(reports: list[Report]) -> None:
    wrong = [r for r in reports if len(r.failed) > KNOWN.get(r.name, 0)]
    assert not wrong, table(wrong)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_first_samples(chunk: int) -> None:
    reports = sweep(chunk, 2, torch.float32)
    hold(reports)
    lost = [r for r in reports if r.name in NATIVE and not r.is_native]
    assert not lost, table(lost)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_samples(chunk: int) -> None:
    reports = sweep(chunk, None, torch.float32)
    hold(reports)
    print(table(reports))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "bool", "bfloat16", "float16"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_other_types(chunk: int, dtype: str) -> None:
    hold(sweep(chunk, 2, getattr(torch, dtype)))


def test_the_list_names_ops() -> None:
    assert {full_name(op) for op in ops()} >= NATIVE
    assert len(NATIVE) > 450
