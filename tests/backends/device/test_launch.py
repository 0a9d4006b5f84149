"""Launches from slots of addresses, with a driver that runs kernels in the interpreter."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import device_backend
import numpy as np
import pytest
import torch

from stack.backends.calls.replay import Replays
from stack.backends.device import driver, launch
from stack.backends.device.driver import Function
from stack.backends.device.launch import LoadedKernel, TensorMapArgument
from stack.backends.device.tensors import adopt, shape_of
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.errors import StackError
from stack.frontends.torch.program.address_calls import direct
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.ir import Builder, Func, Node, TensorType, param, tensor
from stack.ir.types import DTYPES
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import AddressProgram

CPU = torch.device("cpu")
F32 = DTYPES["f32"]
STREAM = 77
REFUSES = 1


def tensor_at(address: int, type_: TensorType) -> torch.Tensor:
    """The tensor at an address of host memory."""
    dtype, shape = TORCH_DTYPE[type_.dtype], shape_of(type_)
    count = int(np.prod(shape)) * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=dtype).view(shape)


class FakeDriver:
    """Launches by calling what is registered with the addresses that the arguments point to."""

    def __init__(self) -> None:
        self.kernels: list[tuple[int, Callable[[list[int]], object]]] = []
        self.streams: list[int | None] = []
        self.encoded: list[int] = []
        self.status = 0

    CUlaunchConfig = SimpleNamespace

    def cuLaunchKernelEx(
        self, config: SimpleNamespace, handle: int, arguments: int, extra: int
    ) -> tuple[int]:
        self.streams.append(config.hStream)
        count, kernel = self.kernels[handle]
        places = (ctypes.c_void_p * count).from_address(arguments)
        kernel([ctypes.c_uint64.from_address(p).value for p in places if p is not None])
        return (self.status,)

    def encode(self, place: int, *rest: object) -> int:
        """The fake map is the address of its array."""
        pointer = rest[2]
        assert isinstance(pointer, int)
        ctypes.c_uint64.from_address(place).value = pointer
        self.encoded.append(pointer)
        return 0

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"out of order"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(driver, "driver", lambda: made)
    monkeypatch.setattr(driver, "encode", lambda: made.encode)
    monkeypatch.setattr(launch, "driver", lambda: made)
    monkeypatch.setattr(launch, "stream_of", lambda device: STREAM)
    return made


def loaded(
    fake: FakeDriver, count: int, kernel: Callable[[list[int]], object], arguments: object = None
) -> LoadedKernel:
    function = object.__new__(Function)
    function.name, function.shared = "fake", 0
    function.handle = len(fake.kernels)  # type: ignore[assignment]
    fake.kernels.append((count, kernel))
    return LoadedKernel(function, 1, (32, 1, 1), CPU, arguments)  # type: ignore[arg-type]


def loader(fake: FakeDriver) -> Callable[[Node], LoadedKernel]:
    """Kernel nodes as launches: equal bodies share one, as they do in a backend."""
    known: dict[object, LoadedKernel] = {}

    def load(node: Node) -> LoadedKernel:
        types = [*(a.tensor for a in node.args), *node.types]
        key = (node.blocks[0], tuple(types))
        if key not in known:
            inner, entering = device_backend.load(node), len(node.args)

            def kernel(addresses: list[int]) -> None:
                held = [tensor_at(a, t) for a, t in zip(addresses, types, strict=True)]
                inner.launch(held[:entering], held[entering:])

            known[key] = loaded(fake, len(types), kernel)
        return known[key]

    return load


def lowered(func: Func) -> Func:
    for _, spec in device_backend.STAGES:
        func = Pipeline(spec).run(func).func
    return func


def chain() -> Func:
    """Two equal layers (one kernel, launched twice), a library product, views, two results."""
    b = Builder()
    x, w = param("x", tensor("f32", 8, 12)), param("w", tensor("f32", 12, 12))
    rule = "m k, k n -> m n"
    first = b.tanh(b.dot(x, w, rule=rule))
    second = b.tanh(b.dot(first, w, rule=rule))
    flat = b.reshape(second, type=tensor("f32", 96))
    return b.func(
        "main", [x, w], [b.exp(flat), b.add(second, x), b.reduce(x, kind="sum", axes=(1,))]
    )


def expected(x: torch.Tensor, w: torch.Tensor) -> list[np.ndarray]:
    a, b = x.double().numpy(), w.double().numpy()
    second = np.tanh(np.tanh(a @ b) @ b)
    return [np.exp(second.reshape(96)), second + a, a.sum(1)]


def assert_right(found: Sequence[torch.Tensor], wanted: Sequence[np.ndarray]) -> None:
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-5)


def test_inputs_that_change_move_and_are_freed(fake: FakeDriver) -> None:
    func = lowered(chain())
    program = BlockProgram(func.body, TorchDevice("cpu"), loader(fake))
    types = [p.tensor for p in func.params]
    kept = []
    freed: list[torch.Tensor] = []
    for turn in range(12):
        x, w = torch.randn(8, 12), torch.randn(12, 12)
        if turn % 3 == 1:
            x, w = torch.randn(12, 8).T, torch.randn(12, 24)[:, ::2]  # not dense
        if turn % 3 == 2:
            x = torch.randn(97)[1:].view(8, 12)  # not aligned
        given = adopt([x, w], types, CPU)
        found = program.run(given)
        if turn % 2:
            # what the last call read is overwritten: nothing may look at it again
            for t in freed:
                t.fill_(float("nan"))
        freed = [t for t in given if t.data_ptr() not in (x.data_ptr(), w.data_ptr())]
        kept.append((found, expected(x, w)))
        del x, w, given
        gc.collect()
    for found, wanted in kept:
        assert_right(found, wanted)
    addresses = {t.data_ptr() for found, _ in kept for t in found}
    assert len(addresses) == 3 * len(kept)


def test_written_in_place_between_calls(fake: FakeDriver) -> None:
    func = lowered(chain())
    program = BlockProgram(func.body, TorchDevice("cpu"), loader(fake))
    x, w = torch.randn(8, 12), torch.randn(12, 12)
    for _ in range(3):
        assert_right(program.run([x, w]), expected(x, w))
        x.normal_()
        w.copy_(torch.randn(12, 12))


def test_what_is_made_during_a_call_is_found(fake: FakeDriver) -> None:
    b = Builder()
    pick, x = param("pick", tensor("i32")), param("x", tensor("f32", 16))
    inner = param("v", tensor("f32", 16))
    chosen = b.cond(
        pick, x, blocks=(b.block([inner], [b.exp(inner)]), b.block([inner], [b.neg(inner)]))
    )
    func = lowered(b.func("main", [pick, x], [b.tanh(b.add(chosen, x))]))
    program = BlockProgram(func.body, TorchDevice("cpu"), loader(fake))
    for number in (0, 1, 0):
        value = torch.randn(16)
        made = value.exp() if number == 0 else -value
        (found,) = program.run([torch.tensor(number, dtype=torch.int32), value])
        assert_right([found], [np.tanh((made + value).double().numpy())])


def test_a_map_follows_its_array(fake: FakeDriver) -> None:
    seen: list[list[int]] = []
    map_of_first = TensorMapArgument(0, (4, 8), (4, 8), 7, 0, 4)
    size = ctypes.c_int64(4)
    kernel = loaded(fake, 4, seen.append, [0, 1, map_of_first, size])
    argument_buffer = [(ctypes.c_uint64 * 1)(n) for n in (10, 20, 30)]
    run, other = (
        kernel.launcher([argument_buffer[2], argument_buffer[0]]),
        kernel.launcher([argument_buffer[1], argument_buffer[0]]),
    )
    for _ in range(2):
        run(5)
        other(6)
    argument_buffer[2][0] = 31
    run(5)
    assert [s[:3] for s in seen] == [[30, 10, 30], [20, 10, 20]] * 2 + [[31, 10, 31]]
    assert fake.encoded == [30, 20, 31]
    assert fake.streams == [5, 6, 5, 6, 5]


def test_on_tensors(fake: FakeDriver) -> None:
    seen: list[list[int]] = []
    kernel = loaded(fake, 2, seen.append)
    for _ in range(3):
        x, y = torch.zeros(4), torch.zeros(4)
        kernel([x], [y])
        assert seen.pop() == [x.data_ptr(), y.data_ptr()]
    assert fake.streams == [STREAM] * 3


def test_a_launch_that_the_driver_refuses(fake: FakeDriver) -> None:
    func = lowered(chain())
    program = BlockProgram(func.body, TorchDevice("cpu"), loader(fake))
    x, w = torch.randn(8, 12), torch.randn(12, 12)
    fake.status = REFUSES
    with pytest.raises(StackError, match=r"error 1 \(out of order\) while launching kernel fake"):
        program.run([x, w])
    assert all(v.array is None for v in program.passing)
    fake.status = 0
    assert_right(program.run([x, w]), expected(x, w))


def test_where_no_driver_is_the_error_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    pytest.importorskip("cuda.bindings")
    with pytest.raises(StackError, match="the CUDA driver cannot be loaded"):
        Function(b"code", "k", 0, 0)


def one_kernel() -> Func:
    """Divides by a row sum; both are results."""
    b = Builder()
    x, y = param("x", tensor("f32", 8, 16)), param("y", tensor("f32", 16))
    total = b.reduce(b.exp(x), kind="sum", axes=(1,))
    spread = b.broadcast(total, type=tensor("f32", 8, 16), axes=(0,))
    return b.func("main", [x, y], [b.div(x, spread), total])


def listed(fake: FakeDriver, func: Func) -> AddressProgram | None:
    program = BlockProgram(lowered(func).body, TorchDevice("cpu"), loader(fake))
    return Replays(program).by_address()


def test_one_kernel_is_launched_on_the_memory_of_the_caller(fake: FakeDriver) -> None:
    program = listed(fake, one_kernel())
    assert program is not None
    x, y = torch.randn(8, 16), torch.randn(16)
    call = direct(program, [x, y], [F32, F32])
    assert call is not None
    kept = []
    for _ in range(4):
        x = torch.randn(8, 16)
        kept.append((call([x, y]), x.double().numpy()))
    for found, value in kept:
        assert found is not None
        total = np.exp(value).sum(1)
        assert_right(found, [value / total[:, None], total])


def test_memory_that_kernels_cannot_read_is_left_to_the_slow_path(fake: FakeDriver) -> None:
    program = listed(fake, one_kernel())
    assert program is not None
    x, y = torch.randn(8, 16), torch.randn(16)
    call = direct(program, [x, y], [F32, F32])
    assert call is not None
    launched = len(fake.streams)
    elsewhere = replace(program, is_current=lambda: False)
    other = direct(elsewhere, [x, y], [F32, F32])
    assert other is not None
    assert other([x, y]) is None
    assert call([torch.randn(129)[1:].view(8, 16), y]) is None  # not aligned
    assert call([x.double(), y]) is None
    assert call([torch.randn(16, 8).T, y]) is None
    assert call([x.requires_grad_(), y]) is None
    assert len(fake.streams) == launched


def test_launches_are_on_the_stream_that_waits_for_earlier_ones(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = iter((5, 9))
    monkeypatch.setattr(TorchDevice, "follow", lambda _: next(streams))
    program = listed(fake, one_kernel())
    assert program is not None
    given = [torch.randn(8, 16), torch.randn(16), torch.empty(8, 16), torch.empty(8)]
    for _ in range(2):
        program.call([t.data_ptr() for t in given])
    count = len(fake.streams) // 2
    assert fake.streams == [5] * count + [9] * count


def test_other_programs_are_not_called_by_address(fake: FakeDriver) -> None:
    body = lowered(one_kernel()).body
    program = BlockProgram(body, TorchDevice("cpu"), device_backend.load)  # kernels take arrays
    assert Replays(program).by_address() is None
    b = Builder()
    x = param("x", tensor("f32", 16))
    assert listed(fake, b.func("main", [x], [b.exp(x), x])) is None  # a copy of an argument


def test_several_kernels_are_left_to_a_graph(fake: FakeDriver) -> None:
    assert len(BlockProgram(lowered(chain()).body, TorchDevice("cpu"), loader(fake)).steps) > 1
    assert listed(fake, chain()) is None
