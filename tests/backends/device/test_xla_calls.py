"""Custom calls of XLA that launch kernels: both handlers, with a driver that records launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xla_frames import STREAM, Api, Frame, Query

from stack.backends.calls import device_steps, native_launches
from stack.backends.calls.device_steps import _Called, _plans, _run  # pyright: ignore[reportPrivateUsage]
from stack.backends.calls.native_launches import NativeLaunches, handler
from stack.backends.device import driver
from stack.backends.device.launch import LoadedKernel, TensorMapArgument

CPU = torch.device("cpu")
U32 = ctypes.c_uint32
Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[U32] * 7, *[ctypes.c_void_p] * 3)
Copy = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
Replace = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Driver:
    """Records launches; a kernel's first parameters are the addresses of its arrays."""

    def __init__(self) -> None:
        self.status = 0
        self.launches: list[tuple[Any, ...]] = []
        self.values: list[list[int]] = []
        self.copies: list[tuple[int, ...]] = []
        functions = {
            "cuLaunchKernel": Launch(self._launch),
            "cuMemcpyDtoDAsync_v2": Copy(self._copy),
            "cuTensorMapReplaceAddress": Replace(self._replace),
        }
        self.functions = functions
        self.count = 0

    def address(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def _launch(self, function: int, *rest: Any) -> int:
        *sizes, stream, parameters, extra = rest
        assert not extra
        places = (ctypes.c_void_p * self.count).from_address(parameters)
        assert all(p is not None for p in places)
        self.values.append([ctypes.c_uint64.from_address(p or 0).value for p in places])
        self.places = list(places)
        self.launches.append((function, *sizes, stream))
        return self.status

    def _copy(self, target: int, source: int, size: int, stream: int) -> int:
        self.copies.append((target, source, size, stream))
        ctypes.memmove(target, source, size)
        return 0

    def _replace(self, place: int, memory: int) -> int:
        assert place % 64 == 0
        ctypes.c_uint64.from_address(place).value = memory
        return 0

    # as `cuda.bindings` calls it

    CUlaunchConfig = SimpleNamespace

    def cuLaunchKernelEx(self, config: Any, function: int, at: int, extra: int) -> tuple[int]:
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        shared, stream = config.sharedMemBytes, config.hStream
        return (self._launch(function, *grid, *block, shared, stream, at, extra),)

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"out of order"

    def encode(self, place: int, *rest: Any) -> int:
        ctypes.c_uint64.from_address(place).value = rest[2]
        ctypes.c_uint64.from_address(place + 120).value = 42
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(native_launches, "function_address", made.address)
    monkeypatch.setattr(driver, "encode", lambda: made.encode)
    for module in (driver, device_steps, device_steps.LoadedKernel.__init__.__globals__):
        if isinstance(module, dict):
            monkeypatch.setitem(module, "driver", lambda: made)
        else:
            monkeypatch.setattr(module, "driver", lambda: made)
    return made


class OnGpu(SimpleNamespace):
    is_gpu = True
    where = CPU


Fill = Callable[[Any], object]
Called = Callable[[Frame], int]


def native(fill: Fill, operands: int, results: int) -> tuple[int, Called, object]:
    """A plan of the native handler: its number, how to call it, and what to keep."""
    code = handler()
    assert code is not None
    steps = NativeLaunches(CPU)
    fill(steps)
    numbers = steps.numbers(operands, results)
    (address,) = code.addresses.values()
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    return ctypes.addressof(numbers), lambda frame: call(frame.address) or 0, (steps, numbers)


def called(fill: Fill, operands: int, results: int) -> tuple[int, Called, object]:
    """As `native`, for the handler that XLA calls back."""
    steps = _Called(OnGpu())  # pyright: ignore[reportArgumentType]
    fill(steps)
    _plans[7] = steps
    return 7, lambda frame: _run(frame.address), steps


KINDS = pytest.mark.parametrize("kind", [native, called], ids=lambda f: f.__name__)


def kernel(arguments: list[Any] | None = None) -> LoadedKernel:
    function: Any = SimpleNamespace(handle=555, shared=4096, name="k")
    return LoadedKernel(function, 17, (32, 4, 2), CPU, arguments)


@KINDS
def test_addresses_of_arrays_and_the_stream(kind: Any, fake: Driver) -> None:
    x, y, scratch = np.arange(8.0), np.zeros(8), np.zeros(64, np.uint8)
    fake.count = 4
    fixed = np.zeros(3)
    places = [(1, 0), (2, 16), (3, 32), (0, fixed.ctypes.data)]
    plan, call, keep = kind(lambda steps: steps.kernel(kernel(), places), 1, 2)
    api = Api()
    for _ in range(2):
        assert call(Frame(api, plan, [x], [y, scratch])) == 0, api.errors
    assert fake.launches == [(555, 17, 1, 1, 32, 4, 2, 4096, STREAM)] * 2
    want = [x.ctypes.data, y.ctypes.data + 16, scratch.ctypes.data + 32, fixed.ctypes.data]
    assert fake.values == [want] * 2
    assert keep


@KINDS
def test_constants_and_tensor_maps(kind: Any, fake: Driver) -> None:
    x, y = np.arange(64.0, dtype=np.float32), np.zeros(64, np.float32)
    fake.count = 3
    mapped = TensorMapArgument(1, (8, 8), (4, 4), 7, 0, 4)
    arguments = [0, mapped, ctypes.c_int32(-5)]
    plan, call, _keep = kind(lambda s: s.kernel(kernel(arguments), [(1, 0), (2, 0)]), 1, 1)
    assert call(Frame(Api(), plan, [x], [y])) == 0
    ((first, second, third),) = fake.values
    assert (first, second) == (x.ctypes.data, y.ctypes.data)
    assert ctypes.c_int32(third).value == -5


@KINDS
def test_several_steps_and_copies(kind: Any, fake: Driver, monkeypatch: Any) -> None:
    x, y = np.arange(8.0), np.zeros(8)
    fake.count = 1
    monkeypatch.setattr(Driver, "cuMemcpyDtoDAsync", lambda s, *a: (s._copy(*a),), raising=False)

    def fill(steps: Any) -> None:
        steps.copy((2, 0), (1, 0), 64)
        steps.copy((2, 0), (2, 0), 64)
        for place in ((1, 0), (2, 0), (1, 8)):
            steps.kernel(kernel(), [place])

    plan, call, _keep = kind(fill, 1, 1)
    assert call(Frame(Api(), plan, [x], [y])) == 0
    assert fake.copies == [(y.ctypes.data, x.ctypes.data, 64, STREAM)]
    assert fake.values == [[x.ctypes.data], [y.ctypes.data], [x.ctypes.data + 8]]
    np.testing.assert_array_equal(x, y)


@KINDS
def test_a_launch_that_fails_is_an_error_of_xla(kind: Any, fake: Driver) -> None:
    x = np.arange(8.0)
    fake.count, fake.status = 1, 1

    def fill(steps: Any) -> None:
        for _ in range(3):
            steps.kernel(kernel(), [(1, 0)])

    plan, call, _keep = kind(fill, 1, 0)
    api = Api()
    assert call(Frame(api, plan, [x], [])) == 1234
    assert len(fake.launches) == 1
    assert "CUDA" in api.errors[0]


def test_other_numbers_of_arrays_are_refused(fake: Driver) -> None:
    plan, call, _keep = native(lambda s: s.kernel(kernel(), [(1, 0)]), 1, 0)
    api = Api()
    assert call(Frame(api, plan, [], [])) == 1234
    assert "other operands" in api.errors[0]
    assert not fake.launches


@KINDS
def test_the_version_of_the_interface(kind: Any, fake: Driver) -> None:
    _, call, _keep = kind(lambda _: None, 0, 0)
    query = Query()
    assert call(query) == 0
    assert query.answer == (0, 1, 1)
