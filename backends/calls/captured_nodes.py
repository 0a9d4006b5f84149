"""Reads the launches in a CUDA graph through the driver."""

from __future__ import annotations

import ctypes
from typing import Any

from ..device.driver import library, map_memory
from .recorded_launches import Fill, Launch, RecordedStep

_KERNEL, _MEMSET, _EMPTY = 0, 2, 5  # kinds of nodes
_COOPERATIVE, _CLUSTER = 2, 4  # attributes of launches
_VALUE_WORDS = 16  # of an attribute, in 32 bits
Word = ctypes.c_uint64


class CannotRead(Exception):
    """A graph has more than a sequence of ordinary launches."""


class _KernelParameters(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _MemsetParameters(ctypes.Structure):
    _fields_ = (
        ("target", Word),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("count", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _ask(name: str, *args: Any) -> None:
    """Calls a function of the driver. Raises CannotRead if it fails or is missing."""
    function = getattr(library(), name, None)
    status = None if function is None else function(*args)
    if status != 0:
        raise CannotRead(f"{name} returns {status}")


def steps_of(graph: int) -> list[RecordedStep]:
    """Returns the launches of a graph, by its handle, in order.

    Parameters are their bytes, and targets addresses. Raises CannotRead for other graphs.
    """
    return [step for node in _in_order(graph) if (step := _step(node)) is not None]


def _in_order(graph: int) -> list[int]:
    """Returns the nodes of a graph in which each waits for the one before."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * max(1, count.value))()
    _ask("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    following: dict[int, int] = {}
    for node in map(int, nodes[: count.value]):
        before, number = (ctypes.c_void_p * 2)(), ctypes.c_size_t(2)
        _ask("cuGraphNodeGetDependencies", ctypes.c_void_p(node), before, ctypes.byref(number))
        if number.value > 1:
            raise CannotRead("a launch waits for several others")
        following[int(before[0] or 0) if number.value else 0] = node
    found, node = list[int](), following.get(0)
    while node is not None:
        found.append(node)
        node = following.get(node)
    if len(found) != count.value:
        raise CannotRead("launches run in parallel")
    return found


def _step(node: int) -> RecordedStep | None:
    """Returns the launch of a node; None for a node that does nothing."""
    handle, kind = ctypes.c_void_p(node), ctypes.c_int()
    _ask("cuGraphNodeGetType", handle, ctypes.byref(kind))
    if kind.value == _EMPTY:
        return None
    if kind.value == _KERNEL:
        return _launch(handle)
    if kind.value == _MEMSET:
        return _fill(handle)
    raise CannotRead(f"a node of kind {kind.value}")


def _launch(node: ctypes.c_void_p) -> Launch:
    for attribute in (_COOPERATIVE, _CLUSTER):
        value = (ctypes.c_uint32 * _VALUE_WORDS)()
        _ask("cuGraphKernelNodeGetAttribute", node, attribute, value)
        if max(value[:3]) > (attribute == _CLUSTER):
            raise CannotRead("a cooperative launch, or one in clusters")
    found = _KernelParameters()
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(found))
    function = ctypes.c_void_p(found.function)
    if not found.function:
        _ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(found.kernel))
    if found.extra or not found.parameters:
        raise CannotRead("parameters in one buffer")
    values = tuple(_values(function, found.parameters))
    assert function.value is not None
    grid, block = tuple(found.grid), tuple(found.block)
    return Launch(function.value, grid, block, found.shared, values)  # pyright: ignore


def _values(function: ctypes.c_void_p, parameters: int) -> list[bytes]:
    """Returns the values of all parameters of a function; `parameters` points to pointers."""
    found: list[bytes] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    ask = library().cuFuncGetParamInfo
    number = ctypes.c_size_t(0)
    while ask(function, number, ctypes.byref(offset), ctypes.byref(size)) == 0:
        at = ctypes.c_void_p.from_address(parameters + 8 * number.value).value
        if at is None:
            raise CannotRead("a parameter without a value")
        found.append(ctypes.string_at(at, size.value))
        number = ctypes.c_size_t(number.value + 1)
    return found


def _fill(node: ctypes.c_void_p) -> Fill:
    found = _MemsetParameters()
    _ask("cuGraphMemsetNodeGetParams", node, ctypes.byref(found))
    if found.height != 1:
        raise CannotRead("rows that are filled")
    return Fill(found.target, found.value, found.width, found.count)


def moved_map(template: bytes, address: int) -> bytes:
    """Returns a tensor map for memory at another address. Raises CannotRead if it is none."""
    held = map_memory()
    held[:] = template
    _ask("cuTensorMapReplaceAddress", held, ctypes.c_void_p(address))
    return bytes(held)
