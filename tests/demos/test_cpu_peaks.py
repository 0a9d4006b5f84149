"""Chains of one instruction: the sums that they leave, and tiles by emulation."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_amx import emulated

from stack.backends.mlir import jit
from stack.demos import cpu_peaks
from stack.target import Mma, cpu_at_hand
from stack.target.mma import MMAS

pytest.importorskip("torch_mlir")

STEPS = 9


CPU = cpu_at_hand()


def run(chains: cpu_peaks.Chains) -> np.ndarray:
    """The results of chains that start from ones."""
    kernel = jit.build(cpu_peaks.kernel_text(chains, STEPS), ["kernel"])["kernel"]
    memory = cpu_peaks.operands(chains)
    memory[: chains.count] = 1
    kernel(memory.ctypes.data)
    return memory[chains.count :, : CPU.lanes]


def mma(name: str) -> Mma | None:
    found = next((m for m in MMAS if m.name == name), None)
    if found is not None and found.feature not in CPU.features:
        pytest.skip(f"this CPU has no {name}")
    return found


@pytest.mark.parametrize("name", ["fma", "vdpbf16ps"])
def test_every_step_of_every_chain_adds_one(name: str) -> None:
    """A 1.0 of 32 bits is a 0.0 and a 1.0 of 16."""
    made = run(cpu_peaks.multiplying(CPU, mma(name)))
    assert made.shape == (CPU.sums, CPU.lanes)
    np.testing.assert_array_equal(made, 1 + STEPS)


def test_bytes_are_multiplied_by_unsigned_ones() -> None:
    made = run(cpu_peaks.multiplying(CPU, mma("vpdpbusd")))
    each = 128 * -128 + 63 * 63  # 1.0 is the bytes 0, 0, 128 and 63
    one = int(np.float32(1).view(np.int32))
    np.testing.assert_array_equal(made.view(np.int32), one + STEPS * each)


def test_loads_are_added() -> None:
    np.testing.assert_array_equal(run(cpu_peaks.loading(CPU)), 1 + STEPS)


@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpbssd"])
def test_tiles_by_emulation(name: str) -> None:
    """Sums stay in registers, so that there is nothing to see but that it runs."""
    (tiles,) = (m for m in MMAS if m.name == name)
    chains = cpu_peaks.multiplying(CPU, tiles)
    text = cpu_peaks.kernel_text(chains, 1, "k")
    assert text.count(tiles.intrinsic) == cpu_peaks.TILES
    jit.build(emulated(text), ["k"])["k"](cpu_peaks.operands(chains).ctypes.data)


def test_a_rate_is_positive() -> None:
    assert cpu_peaks.rate(cpu_peaks.loading(CPU), rounds=1) > 0
