"""Chains of one instruction: the sums that they leave, and tiles by emulation."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_amx import emulated

from stack.backends.mlir import jit, peaks
from stack.target import Mma, cpu_at_hand
from stack.target.mma import MMAS

pytest.importorskip("torch_mlir")

STEPS = 9


def run(text: str, name: str) -> np.ndarray:
    """What chains leave that start from ones."""
    kernel = jit.build(text, [name])[name]
    memory = peaks.operands()
    memory[: peaks.CHAINS] = 1
    kernel(memory.ctypes.data)
    return memory[peaks.CHAINS :]


def mma(name: str) -> Mma | None:
    found = next((m for m in MMAS if m.name == name), None)
    if found is not None and found.feature not in cpu_at_hand().features:
        pytest.skip(f"this CPU has no {name}")
    return found


@pytest.mark.parametrize("name", ["fma", "vdpbf16ps"])
def test_every_step_of_every_chain_adds_one(name: str) -> None:
    """A 1.0 of 32 bits is a 0.0 and a 1.0 of 16."""
    made = run(peaks.kernel_text(peaks.multiplying(mma(name)), STEPS), "kernel")
    np.testing.assert_array_equal(made, 1 + STEPS)


def test_bytes_are_multiplied_by_unsigned_ones() -> None:
    made = run(peaks.kernel_text(peaks.multiplying(mma("vpdpbusd")), STEPS), "kernel")
    each = 128 * -128 + 63 * 63  # 1.0 is the bytes 0, 0, 128 and 63
    one = int(np.float32(1).view(np.int32))
    np.testing.assert_array_equal(made.view(np.int32), one + STEPS * each)


def test_loads_are_added() -> None:
    np.testing.assert_array_equal(run(peaks.kernel_text(peaks.loading(), STEPS), "kernel"), 10)


@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpbssd"])
def test_tiles_by_emulation(name: str) -> None:
    (tiles,) = (m for m in MMAS if m.name == name)
    text = peaks.kernel_text(peaks.multiplying(tiles), 1, "k")
    assert text.count(tiles.intrinsic) == peaks.TILES
    assert not run(emulated(text), "k").any()  # sums stay in registers


def test_rates_are_positive() -> None:
    assert peaks.rate(peaks.multiplying(), rounds=1) > 0
