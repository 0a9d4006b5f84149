"""Fast inference of result metadata of ATen ops on fake tensors, through meta kernels.

Torch's fake tensor mode takes a millisecond for an op that it has not seen with such operands: it
tries Python decompositions and special cases, and caches the result. Views, matmuls and elementwise
ops need none of this; calling their meta kernel directly takes a twentieth of the time. The meta
kernel of a view is in C++; torch's Python dispatcher has another one, for symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey  # pyright: ignore[reportAttributeAccessIssue]
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_PRODUCTS = frozenset({
    "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_unsafe_view",
})  # fmt: skip

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def meta_kernels() -> Iterator[None]:
    """Context in which every fake tensor mode uses meta kernels for simple ops.

    All threads share the patch: hold torch's lock.
    """
    usual: Any = getattr(FakeTensorMode, "_cached_dispatch_impl", None)
    if usual is None:  # this torch version has no such method
        yield
        return

    def dispatched(self: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not kwargs and _is_plain(func) and _are_known(args):
            given: list[Any] = [a for a in args if isinstance(a, torch.Tensor)]
            if given and _are_alike(self, given):
                return _made(self, func, args, given[0].fake_device)
        return usual(self, func, types, args, kwargs)

    with mock.patch.object(FakeTensorMode, "_cached_dispatch_impl", dispatched):
        yield


def _made(mode: FakeTensorMode, func: Callable[..., Any], args: Any, device: Any) -> Any:
    with fake_tensor.in_kernel_invocation_manager(mode), torch._C._DisablePythonDispatcher():
        found = func(*args)
    if isinstance(found, list | tuple):
        return type(found)([FakeTensor(mode, x, device) for x in found])  # pyright: ignore
    return FakeTensor(mode, found, device)


@cache
def _is_plain(func: Any) -> bool:
    """True if metadata of the operands determines the results, equally on all devices."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return False
    if func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return False  # it may decompose differently on each device
    is_elementwise = torch.Tag.pointwise in func.tags
    return func.is_view or is_elementwise or func._schema.name in _PRODUCTS


def _are_known(args: Any) -> bool:
    """True if no number among arguments is symbolic."""
    parts = (x for a in args for x in (a if isinstance(a, list | tuple) else (a,)))
    return not any(isinstance(x, _SYMBOLIC) for x in parts)


def _are_alike(mode: FakeTensorMode, given: list[Any]) -> bool:
    """True if tensors have known sizes, no known values, and the same mode and device."""
    first = given[0]
    return not mode.propagate_real_tensors and all(
        type(x) is FakeTensor
        and x.constant is None
        and x.fake_mode is mode
        and x.fake_device == first.fake_device
        and x.layout is torch.strided
        and not x._has_symbolic_sizes_strides
        for x in given
    )
