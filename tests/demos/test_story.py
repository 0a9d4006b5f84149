"""The main demo without the other compilers, and what it says to try next."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from stack.cli import build_parser
from stack.demos import cpu_rows, models, story, transformer


@pytest.mark.every(2)
@pytest.mark.parametrize("frontend", ["torch", "jax"])
def test_a_small_block_passes_every_check(
    frontend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(frontend)
    config = models.LlamaConfig(width=64, heads=4, kv_heads=2, ffn=96, seq=16)
    fn, args = transformer.llama_block(frontend, config)
    assert story.walk("llama_block", frontend, fn, args, tmp_path) == 0
    out = capsys.readouterr().out
    assert "every IR stage parses back to the same object and agrees with eager" in out
    assert "0 fallback" in out
    assert "of roof" in out
    assert (tmp_path / f"llama_block-{frontend}" / "manifest.json").is_file()


def test_what_to_try_next_parses() -> None:
    lines = [line.strip() for line in story.NEXT.splitlines() if line.startswith("  stackc")]
    assert len(lines) >= 4
    for line in lines:
        build_parser().parse_args(shlex.split(line.split("   ")[0])[1:])


def test_bench_programs_are_the_same_in_both_frameworks() -> None:
    import numpy as np

    pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    module, (x,) = cpu_rows.blocks("torch", count=2, seq=8)
    stacked, args = cpu_rows.blocks("jax", count=2, seq=8)
    expected = module(x).detach().numpy()
    assert np.allclose(np.asarray(jax.jit(stacked)(*args)), expected, atol=1e-4)
    for dtype, atol in (("f32", 1e-4), ("bf16", 0.2)):
        module, (x,) = cpu_rows.block("torch", "llama", 8, dtype)
        fn, args = cpu_rows.block("jax", "llama", 8, dtype)
        expected = module(x).detach().float().numpy()
        found = np.asarray(jax.jit(fn)(*args)).astype(np.float32)
        assert np.allclose(found, expected, atol=atol), dtype
