"""A GPU, or a CPU instead, as a `Device` of programs: torch's memory, streams and libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from stack.frameworks.torch_private import stream_handle, without_autocast
from stack.frameworks.torch_ranges import torch_ranges
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.ir.node import Node
from stack.ir.types import DType
from stack.ranges import register
from stack.wings import part

from ..runtime.device import CallOpaque, DeviceKernel, LibraryCall, Load, Make, Work
from .library import DeviceSpace, library_of
from .tensors import allocator, download, memory_text, upload

register("torch", torch_ranges)  # programs of other frameworks run on torch's tensors too

Tensor = torch.Tensor


class TorchDevice:
    """A device of torch, as the runtime's `Device`.

    Args:
        where: "cuda", "cuda:1" or "cpu".
    """

    out_of_memory = torch.OutOfMemoryError

    def __init__(self, where: str | torch.device = "cuda") -> None:
        self.where = torch.device(where)
        self.is_gpu = self.where.type == "cuda"
        self.space = DeviceSpace(self.where)
        # the stream that last used the arena, and its handle
        self.stream: torch.cuda.Stream | None = None
        self.handle = -1

    def dtype(self, dtype: DType) -> torch.dtype:
        return TORCH_DTYPE[dtype]

    def memory(self, size: int, what: str) -> Tensor:
        def allocate(_: Iterable[Tensor], __: int) -> list[Tensor]:
            return [self.allocator((size,), torch.uint8, what)()]

        return self.within(allocate, ())[0]

    def allocator(
        self, shape: tuple[int, ...], dtype: torch.dtype, what: str
    ) -> Callable[[], Tensor]:
        """Allocates on the current device of this kind."""
        return allocator(shape, dtype, self.where, what)

    def shortage(self, error: BaseException, asked: int, what: str) -> str:
        return memory_text(error, asked, self.where, what)

    address = staticmethod(torch.Tensor.data_ptr)
    copy = staticmethod(torch.Tensor.clone)

    def constant(self, node: Node) -> Tensor:
        held = self.space.constant(node.attrs["value"])
        return self.space.leave(held, node.tensor).contiguous()

    def library(self, node: Node) -> LibraryCall:
        return library_of(node, self.space)

    def opaque(self, node: Node, call: CallOpaque) -> Make:
        """Executes an opaque torch node on this device, with this device's random generator.

        Nodes of other frameworks run on copies in host memory.
        """
        target, how = str(node.attrs["target"]), node.attrs["call"]
        entering = [a.tensor for a in node.args]
        leaving = node.types

        def elsewhere(values: Sequence[Tensor], _: int) -> list[Tensor]:
            results = call(target, how, download(values, entering))
            return upload(results, leaving, self.where)

        def here(values: Sequence[Tensor], _: int) -> list[Tensor]:
            held = [self.space.enter(x, t) for x, t in zip(values, entering, strict=True)]
            found = self.space.op_opaque(node, *held)
            results = found if isinstance(found, tuple) else (found,)
            # results in host memory are moved here: kernels read this device's memory
            moved = [r.to(self.where) if isinstance(r, Tensor) else r for r in results]
            made = [self.space.leave(r, t) for r, t in zip(moved, leaving, strict=True)]
            return _unshared(made, values)

        return here if target.startswith("torch:") else elsewhere

    def hosted(self, node: Node) -> LibraryCall:
        kernel, attributes = part("ops", "kernel-call")(node, "cuda")

        def run(values: Sequence[Tensor], _: int) -> list[Tensor]:
            out = kernel(*(v.contiguous() for v in values), **attributes)
            return _unshared(out if isinstance(out, tuple) else (out,), values)

        return LibraryCall(kernel.kind, make=run, capturable=kernel.capturable)

    def control(self, node: Node, read: Sequence[int], load: Load) -> DeviceKernel | None:
        return None

    def within(self, run: Work, arrays: Iterable[Tensor]) -> list[Tensor]:
        # autocast was applied when the program was traced
        with torch.no_grad(), without_autocast():
            if not self.is_gpu:
                return run(arrays, 0)
            with torch.cuda.device(self.where):
                return run(arrays, self.follow())

    @property
    def being_captured(self) -> bool:
        """True if the current stream is capturing a CUDA graph, ours or someone else's."""
        return self.is_gpu and torch.cuda.is_current_stream_capturing()

    def is_current(self) -> bool:
        """True if allocations and launches of the calling thread are on this device."""
        return not self.is_gpu or self.where.index in (None, torch.cuda.current_device())

    def follow(self) -> int:
        """Make the current stream wait for the stream that last used the arena.

        Returns the current stream's handle; 0 on a CPU. Does not wait while a graph is captured.
        """
        if not self.is_gpu:
            return 0
        handle = stream_of(self.where)
        # a capture starts on an idle device, and must not wait for streams outside of it
        if handle != self.handle and not self.being_captured:
            current = torch.cuda.current_stream(self.where)
            if self.stream is not None:
                current.wait_stream(self.stream)
            self.stream, self.handle = current, handle
        return handle

    def mark(self) -> Any:
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        if not self.is_gpu:
            return [b - a for a, b in pairwise(marks)]
        torch.cuda.synchronize(self.where)
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]


def stream_of(device: torch.device) -> int:
    """The handle of torch's current stream on a GPU."""
    assert stream_handle is not None
    number = device.index
    return stream_handle(torch.cuda.current_device() if number is None else number)


def _unshared(made: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Dense tensors that alias nothing: an operator may return a view of one of its operands."""
    taken = {t.untyped_storage().data_ptr() for t in others}
    found: list[Tensor] = []
    for tensor in made:
        held = tensor.clone() if tensor.untyped_storage().data_ptr() in taken else tensor
        taken.add(held.untyped_storage().data_ptr())
        found.append(held.contiguous())
    return found
