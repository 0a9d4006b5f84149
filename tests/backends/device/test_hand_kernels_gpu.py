"""Hand-written kernels whose launches are captured, on a GPU: on other memory, and refusals."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from stack.backends.calls.hand_kernels import recorded
from stack.backends.calls.native_launches import NativeLaunches
from stack.backends.calls.xla_call_text import FILL
from stack.backends.calls.xla_launch_text import LAUNCH_HEAD
from stack.backends.device.torch_device import TorchDevice
from stack.hosted.registry import find
from stack.ir import TensorType, tensor

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("steps", [64, 4096])
def test_captured_launches_compute_on_other_memory(steps: int) -> None:
    types = [tensor("f32", 2, steps, 32), tensor("f32", 2, steps, 32), tensor("f32", 2, 32)]
    (kernel,) = find("scan.gated").kernels
    made = recorded(kernel, types, types[:1], TorchDevice("cuda"))
    assert made is not None
    gate, x, first = (torch.rand(*map(int, t.shape), device="cuda") for t in types)
    held = [*(t for t in (gate, x, first)), *(_bytes(n) for n in made.sizes[3:])]
    launches = NativeLaunches(torch.device("cuda"))
    launches.recorded(made.steps, [(0, t.data_ptr()) for t in held])
    _run(launches)
    found = held[made.results[0]].view(torch.float32)[: x.numel()].view(x.shape)
    torch.testing.assert_close(found, kernel(gate, x, first))


def _bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _run(launches: NativeLaunches) -> None:
    """Runs launches on addresses through the driver, in place of the handler of XLA."""
    cuda: Any = ctypes.CDLL("libcuda.so.1")
    for step in launches.steps:
        if step[0] == FILL:
            _, _, _, target, value, count = step
            status = cuda.cuMemsetD32Async(
                ctypes.c_uint64(target), value, ctypes.c_size_t(count), None
            )
        else:
            _, _, function, *sizes, shared, _, number, _ = step[:LAUNCH_HEAD]
            slots = []
            for i in range(number):
                _, address, _, offset = step[LAUNCH_HEAD + 4 * i :][:4]
                slot = ctypes.c_uint64(offset)
                slots.append((slot, address or ctypes.addressof(slot)))
            given = (ctypes.c_void_p * number)(*(at for _, at in slots))
            handle = ctypes.c_void_p(function)
            status = cuda.cuLaunchKernel(handle, *sizes, shared, None, given, None)
        assert status == 0
    torch.cuda.synchronize()


def test_kernels_that_are_no_list_of_launches_are_refused() -> None:
    vector: TensorType = tensor("f32", 64)
    device = TorchDevice("cuda")

    def depends(x: torch.Tensor) -> torch.Tensor:
        return x + float(x.data_ptr() % 1024)

    for run in (lambda x: x, lambda x: x * float(x.sum()), lambda x: x.view(8, 8) * 2, depends):
        with pytest.warns(UserWarning, match="launched from Python"):
            assert recorded(run, [vector], [vector], device) is None
    assert torch.randn(8, device="cuda").isfinite().all()
