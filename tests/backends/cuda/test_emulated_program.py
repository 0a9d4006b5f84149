"""A whole program through the emulator: one arena, launches, and library steps between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulator import COMPILER
from cuda_emulator import loaded as emulated

import stack
from stack.backends.cuda import BACKEND, nvrtc
from stack.backends.cuda.compiler import compile_program
from stack.backends.cuda.values import Source
from stack.backends.runtime.plan import OnArrays
from stack.rewrite import Pipeline

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.skipif(nvrtc.missing_compiler() is not None, reason="needs NVRTC"),
]
SEQ, VOCAB, WIDTH = 16, 24, 32


def loss(params: Any, tokens: Any) -> Any:
    """The gradients of both tables begin with zeros, of two sizes."""
    x = params["token"][tokens] + params["place"][jax.numpy.arange(SEQ)]
    return jax.numpy.square(x @ params["token"].T).mean()


def test_a_training_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator
) -> None:
    from stack.backends.cuda import launch

    sources: list[Source] = []

    def load(source: Source, *_: Any) -> OnArrays:
        folder = tmp_path / str(len(sources))
        os.mkdir(folder)
        sources.append(source)
        run = emulated(source, folder)
        return OnArrays(lambda ins, outs: run([t.data_ptr() for t in (*ins, *outs)]))

    monkeypatch.setattr(launch, "device_target", lambda _: "sm_90")
    monkeypatch.setattr(launch, "loaded", load)
    params = {
        "place": rng.normal(size=(SEQ, WIDTH)).astype(np.float32),
        "token": rng.normal(size=(VOCAB, WIDTH)).astype(np.float32),
    }
    tokens = rng.integers(0, VOCAB, (2, SEQ)).astype(np.int32)
    step = jax.value_and_grad(loss)
    func = stack.trace(step, jax.tree.map(jax.numpy.asarray, params), jax.numpy.asarray(tokens))
    for _, passes in BACKEND.lowering.stages:
        func = Pipeline(passes).run(func).func
    arrays = [params["place"], params["token"], tokens]
    found: Sequence[np.ndarray] = compile_program(func, {"device": "cpu"}).run(arrays)
    with jax.enable_x64(True):
        exact = step({k: v.astype(np.float64) for k, v in params.items()}, tokens)
    for got, want in zip(found, jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(got, want, atol=4e-6 * float(np.abs(want).max()))
    assert len(sources) > 1
