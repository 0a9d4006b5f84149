"""TVM's default GPU schedules, compiled for a GPU that need not be here."""

from __future__ import annotations

from typing import Any

import pytest

import stack
import stack.plugins as plugins
from stack.run.compile import lower
from stack.run.record import Run

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention(dtype: str) -> None:
    """A number in a tensor, such as -inf, does not widen what it is chosen against."""
    import tvm

    from stack.backends.peer_tvm_gpu import gpu_target, schedule
    from stack.backends.peer_tvm_lower import called
    from stack.demos.gpu_attention import causal

    q = torch.randn(1, 2, 64, 32).to(getattr(torch, dtype))
    func = lower(stack.trace(causal, q, q, q), plugins.load("stack.backends", "tvm"), Run())
    module = schedule(func, gpu_target("sm_90"))
    assert any("matmul" in name for name in called(module))
    assert "threadIdx.x" in module.script(show_meta=False)
    built: Any = tvm.compile(module, target=gpu_target("sm_90"))
    assert built is not None


def test_a_block_of_mixed_types() -> None:
    from stack.backends.peer_tvm_gpu import gpu_target, schedule

    def turned(x: Any, cos: Any) -> Any:
        return x * cos + x.relu() - cos

    x, cos = torch.randn(4, 8).bfloat16(), torch.randn(8)
    func = lower(stack.trace(turned, x, cos), plugins.load("stack.backends", "tvm"), Run())
    assert "float32" in schedule(func, gpu_target("sm_90")).script(show_meta=False)
