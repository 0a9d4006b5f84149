"""Ops without a lowering: the node, its text, how it runs, what may be called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_harness import FRONTEND, capture, check, ops, run

from stack.errors import StackError
from stack.ir.types import BF16, F32
from stack.run.frontend import Captured

X = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))


def targets(captured: Captured) -> list[str]:
    return [n.attrs["target"] for n in captured.func.nodes if n.op == "opaque"]


def test_one_result() -> None:
    captured = check(lambda x: torch.special.bessel_y0(x.abs() + 1) * 2, X)
    assert targets(captured) == ["torch:aten.special_bessel_y0.default"]
    assert "no lowering" in captured.notes["fallbacks"]


def test_several_results() -> None:
    captured = check(lambda x: tuple(torch.linalg.qr(x + 1)), X)
    assert targets(captured) == ["torch:aten.linalg_qr.default"]
    assert "item" in ops(captured.func)


def test_complex_values() -> None:
    check(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=3), X, rtol=1e-4, atol=1e-5)


def test_bf16_crosses() -> None:
    check(lambda x: torch.special.bessel_y0(x.float().abs() + 1).bfloat16().logcumsumexp(0), X)


def test_equal_random_calls_stay_apart() -> None:
    captured = capture(lambda x: torch.rand_like(x) - torch.rand_like(x), X)
    effects = [n.attrs["effect"] for n in captured.func.nodes if n.op == "opaque"]
    assert sorted(effects) == [0, 1]


def test_equal_pure_calls_merge() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_y0(x) - torch.special.bessel_y0(x)

    assert len(targets(capture(f, X))) == 1


@pytest.mark.parametrize(
    "target",
    [
        "torch:os.system.default", "torch:aten.from_file.default", "torch:aten.nothing.default",
        "torch:aten.add", "torch:aten.__class__.default", "aten.sin.missing",
    ],
)  # fmt: skip
def test_only_known_operators_are_called(target: str) -> None:
    with pytest.raises(StackError):
        FRONTEND.call_opaque(target, ((), ()), [np.zeros(2, np.float32)])


def test_calls_by_name() -> None:
    call = ((("tensor", 0, "f32"),), ())
    (out,) = FRONTEND.call_opaque("torch:aten.sin.default", call, [X.numpy()])
    np.testing.assert_allclose(out, X.sin().numpy())


def test_random_inputs() -> None:
    x, i, b = FRONTEND.random_inputs(["f32[2, 3]", "i64[4]<10", "bf16[]"])
    assert (x.shape, x.dtype) == ((2, 3), torch.float32)
    assert i.dtype is torch.int64
    assert int(i.max()) < 10
    assert (b.shape, b.dtype) == ((), torch.bfloat16)
    assert FRONTEND.to_numpy(b, BF16).dtype == np.uint16


def test_storage_is_shared_where_dense() -> None:
    x = torch.zeros(3)
    FRONTEND.to_numpy(x, F32)[0] = 5
    assert x[0] == 5
    array = np.zeros(3, np.float32)
    FRONTEND.from_numpy(array, F32)[1] = 7
    assert array[1] == 7


def test_singular_matrix_raises_as_eager() -> None:
    captured = check(torch.linalg.inv, X + 3 * torch.eye(3), rtol=1e-4, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError):
        run(captured, torch.zeros(3, 3))
    call = torch.compile(torch.linalg.inv, backend="stack", options={"backend": "interpreter"})
    torch.testing.assert_close(call(2 * torch.eye(3)), torch.eye(3) / 2)
    with pytest.raises(torch.linalg.LinAlgError):
        call(torch.zeros(3, 3))
