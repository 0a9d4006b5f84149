"""Custom calls of XLA that launch kernels: both handlers, with a driver that records launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import device_backend
import numpy as np
import pytest
import torch
from xla_frames import STREAM, Api, Frame, Query

import stack
from stack.backends.calls import device_steps, native_launches
from stack.backends.calls.device_steps import DeviceSteps, _Called, _plans, _run  # pyright: ignore[reportPrivateUsage]
from stack.backends.calls.native_launches import NativeLaunches, handler
from stack.backends.calls.recorded_launches import Fill, MapOf, Recorded, Spot
from stack.backends.calls.recorded_launches import Launch as RecordedLaunch
from stack.backends.device import driver
from stack.backends.device.launch import LoadedKernel, TensorMapArgument
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.hosted.nodes import custom
from stack.ir import Builder, param, tensor

CPU = torch.device("cpu")
U32 = ctypes.c_uint32
Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[U32] * 7, *[ctypes.c_void_p] * 3)
Copy = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
Replace = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Set = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
)


@stack.op("calls.doubled", rule="n -> n", kernels=(stack.Kernel("cuda", "x:y", capturable=True),))
def _doubled(np: Any, x: Any) -> Any:
    """Twice x."""
    return x + x


class Driver:
    """Records launches; a kernel's first parameters are the addresses of its arrays."""

    def __init__(self) -> None:
        self.status = 0
        self.launches: list[tuple[Any, ...]] = []
        self.values: list[list[int]] = []
        self.copies: list[tuple[int, ...]] = []
        self.fills: list[tuple[int, ...]] = []
        functions = {
            "cuLaunchKernel": Launch(self._launch),
            "cuMemcpyDtoDAsync_v2": Copy(self._copy),
            "cuTensorMapReplaceAddress": Replace(self._replace),
            "cuMemsetD32Async": Set(self._set),
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

    def _set(self, target: int, value: int, count: int, stream: int) -> int:
        self.fills.append((target, value, count, stream))
        (ctypes.c_uint32 * count).from_address(target)[:] = [value] * count
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


Filling = Callable[[Any], object]
Called = Callable[[Frame], int]


def native(fill: Filling, operands: int, results: int) -> tuple[int, Called, object]:
    """A plan of the native handler: its number, how to call it, and what to keep."""
    code = handler()
    assert code is not None
    steps = NativeLaunches(CPU)
    fill(steps)
    numbers = steps.numbers(operands, results)
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(code.address)
    return ctypes.addressof(numbers), lambda frame: call(frame.address) or 0, (steps, numbers)


def called(fill: Filling, operands: int, results: int) -> tuple[int, Called, object]:
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


def test_recorded_launches_on_other_memory(fake: Driver) -> None:
    x, y, scratch = np.arange(8.0), np.zeros(8), np.ones(64, np.uint32)
    fake.count = 3
    parameters = Spot(0, 8), MapOf(bytes(128), Spot(1, 0)), b"\5\0"
    steps = [
        Fill(Spot(2, 16), 7, 4, 3),
        RecordedLaunch(55, (2, 3, 4), (32, 2, 1), 96, parameters),
    ]
    places = [(1, 0), (2, 0), (3, 32)]
    plan, call, _keep = native(lambda s: s.recorded(steps, places), 1, 2)
    assert call(Frame(Api(), plan, [x], [y, scratch])) == 0
    assert fake.fills == [(scratch.ctypes.data + 48, 7, 3, STREAM)]
    assert [*scratch[11:16]] == [1, 7, 7, 7, 1]
    assert fake.launches == [(55, 2, 3, 4, 32, 2, 1, 96, STREAM)]
    ((first, second, third),) = fake.values
    assert (first, second, third & 0xFFFF) == (x.ctypes.data + 8, y.ctypes.data, 5)


def test_a_hand_kernel_and_its_scratch_memory_are_steps_of_a_call(
    fake: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launches are captured once; the call has its own memory for arrays that it makes."""
    b = Builder()
    x = param("x", tensor("f32", 16))
    (node,) = custom(b, _doubled, [x], {})
    func = b.func("main", [x], [node])
    spots = Spot(0, 0), Spot(1, 0), Spot(2, 4)
    launch = RecordedLaunch(55, (1, 1, 1), (32, 1, 1), 0, spots)
    made = Recorded((launch,), (64, 256, 64), (2,))
    asked: list[Any] = []
    monkeypatch.setattr(device_steps, "recorded", lambda *given: asked.append(given) or made)
    monkeypatch.setattr(DeviceSteps, "_are_native", True)
    device = TorchDevice("cpu")
    steps = DeviceSteps(func, BlockProgram(func.body, device, device_backend.load))
    device.is_gpu = True
    assert steps.takes(node)
    assert steps.takes(node)
    ((_, operands, results, _),) = asked
    assert (*operands, *results) == (x.tensor, node.tensor)
    made_call = steps.call([node], [(x, 0)], [(node, 0)])
    assert made_call.scratch >= 256
    one, two, scratch = np.zeros(16, np.float32), np.zeros(16, np.float32), np.zeros(64, np.float32)
    fake.count = 3
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(made_call.handler)
    assert not call(Frame(Api(), made_call.plan, [one], [two, scratch]).address)
    assert fake.values == [[one.ctypes.data, scratch.ctypes.data, two.ctypes.data + 4]]


def test_a_hand_kernel_that_python_launches_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = param("x", tensor("f32", 16))
    (node,) = custom(b, _doubled, [x], {})
    func = b.func("main", [x], [node])
    steps = DeviceSteps(func, BlockProgram(func.body, TorchDevice("cpu"), device_backend.load))
    assert not steps.takes(node)  # on a CPU
    monkeypatch.setattr(DeviceSteps, "_are_native", True)
    monkeypatch.setattr(device_steps, "recorded", lambda *_: None)
    steps = DeviceSteps(func, steps.program)
    assert not steps.takes(node)  # no list of launches
