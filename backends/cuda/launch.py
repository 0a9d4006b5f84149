"""Launches on torch's current stream, through cuda.core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stack.errors import StackError

from .nvrtc import Binary
from .values import Source

LEGACY_STREAM = 1  # CUDA's name for the default stream, whose handle in torch is 0
Launch = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]


def device_target(device: torch.device) -> str:
    """What to compile for, so that it runs on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def loaded(source: Source, binary: Binary, device: torch.device) -> Launch:
    """What launches a kernel on tensors of a device: inputs, then outputs."""
    from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch  # pyright: ignore[reportAttributeAccessIssue]

    number = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.init()
    here = Device(number)
    here.set_current()
    kernel = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
    if source.shared:
        _ask_shared(kernel, source.shared, number)
    config = LaunchConfig(
        grid=(source.blocks, 1, 1), block=(32, source.warps, 1), shmem_size=source.shared
    )
    streams: dict[int, Any] = {}

    def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        handle = torch.cuda.current_stream(device).cuda_stream or LEGACY_STREAM
        if handle not in streams:
            streams[handle] = Stream.from_handle(handle)
        launch(streams[handle], config, kernel, *(t.data_ptr() for t in (*inputs, *outputs)))

    return run


def _ask_shared(kernel: Any, size: int, number: int) -> None:
    """More shared memory than every kernel has needs to be asked for."""
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    device = driver.CUdevice(number)
    (status,) = driver.cuKernelSetAttribute(attribute, size, kernel.handle, device)
    if int(status):
        raise StackError(f"the device has no {size} bytes of shared memory for a block: {status}")
