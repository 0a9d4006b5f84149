"""Torch's own table of ops: every op that has a lowering gives what eager gives."""

from __future__ import annotations

import math
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_opinfo_sweep
from torch_opinfo import Report, check_op, compare, distinct, full_name, ops, table

CHUNKS = 16
NATIVE = frozenset(Path(__file__).with_name("native_ops.txt").read_text().split())

# (op, samples) of all: where the error is that of a few sums and no input moves it, it may be luck
KNOWN = {
    "nn.functional.multi_head_attention_forward": 2,
    "nn.functional.scaled_dot_product_attention": 1,
    "nn.functional.interpolate.linear": 2,
    "nn.functional.interpolate.bicubic": 2,
    "nn.functional.nll_loss": 2,
}


def sweep(chunk: int, limit: int | None, dtype: torch.dtype) -> list[Report]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [op for i, op in enumerate(ops(dtype)) if i % CHUNKS == chunk]
        return [check_op(op, limit, dtype) for op in chosen]


def hold(reports: list[Report], known: dict[str, int] = KNOWN) -> None:
    wrong = [r for r in reports if len(r.failed) > known.get(r.name, 0)]
    assert not wrong, table(wrong)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_first_samples(chunk: int) -> None:
    reports = sweep(chunk, 1, torch.float32)  # the sweep below has all
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
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_samples_natively(chunk: int, tmp_path: Path) -> None:
    args = torch_opinfo_sweep.options([str(tmp_path / "results.jsonl"), "--backend", "mlir"])
    chosen = [op for i, op in enumerate(ops()) if i % CHUNKS == chunk]
    reports = [torch_opinfo_sweep.check(op, args) for op in chosen]
    hold(reports)
    print(table(reports))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "backward"])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_on_a_gpu(backend: str, kind: str, tmp_path: Path) -> None:
    dtype = "float32" if kind == "backward" else kind
    argv = [str(tmp_path / "r.jsonl"), "--backend", backend, "--device", "cuda", "--dtype", dtype]
    argv += ["--samples", "3", "--jobs", "8", "--seconds", "60"]
    args = torch_opinfo_sweep.options([*argv, *(["--backward"] if kind == "backward" else [])])
    names = [full_name(op) for op in ops(getattr(torch, dtype), kind == "backward")]
    reports = list(torch_opinfo_sweep.check_all(names, args))
    assert {r.name for r in reports} == set(names)
    hold(reports, {})
    print(table(reports))


def test_a_crash_fails_its_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(op: Any, sample: Any, report: Report, *_: Any) -> None:
        if report.passed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        report.passed += 1

    monkeypatch.setattr(torch_opinfo_sweep, "check_sample", crash)
    op = next(op for op in ops() if op.name == "add")
    args = torch_opinfo_sweep.options(["unused", "--samples", "4", "--backend", "interpreter"])
    report = torch_opinfo_sweep.check(op, args)
    assert report.passed == 2
    assert report.failed == [f"the process ended with SIGKILL at sample {i}" for i in (1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "bool", "bfloat16", "float16"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_other_types(chunk: int, dtype: str) -> None:
    hold(sweep(chunk, 2, getattr(torch, dtype)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_gradients_at_positions_are_asked_where_no_elements_are_equal(dtype: torch.dtype) -> None:
    found = distinct(torch.zeros(3, 0, 5, dtype=dtype))
    assert found.shape == (3, 0, 5)
    found = distinct(torch.zeros(5, 10, 50, dtype=dtype))
    assert found.shape == (5, 10, 50)
    assert found.isfinite().all()
    assert found.unique().numel() == found.numel()


def test_where_eager_overflows_the_truth_is_right_as_well() -> None:
    eager = torch.tensor([math.inf, 1.0, math.inf], dtype=torch.float16)
    exact = torch.tensor([7.6406, 1.0, 1e9], dtype=torch.float64)

    def ours(*values: float) -> np.ndarray:
        return np.array(values, np.float16)

    assert compare(ours(7.6406, 1, math.inf), eager, exact).is_right
    assert compare(ours(math.inf, 1, math.inf), eager, exact).is_right
    assert not compare(ours(7.6, 1, math.inf), eager, exact).is_right
    assert not compare(ours(7.6406, 1.01, math.inf), eager, exact).is_right
    assert not compare(ours(7.6406, 1, 65504), eager, exact).is_right
    assert not compare(ours(-math.inf, 1, math.inf), eager, exact).is_right
    assert not compare(ours(7.6406, math.inf, math.inf), eager, exact).is_right


def test_the_list_names_ops() -> None:
    assert {full_name(op) for op in ops()} >= NATIVE
    assert len(NATIVE) > 450
