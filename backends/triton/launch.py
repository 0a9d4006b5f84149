"""Launches a Triton kernel on tensors: inputs, then outputs."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from ..device.driver import Function
from ..device.launch import Argument, LoadedKernel, TensorMapArgument
from ..device.symbols import named
from ..runtime.plan import OnArrays
from . import build, interpreter
from .source import Source
from .values import SPLIT

_BYTES = {"u64": 8, "b64": 8, "s64": 8, "u32": 4, "b32": 4, "s32": 4, "b8": 1}
# Triton numbers element types as the device does; the driver's numbers differ for three
_KINDS: dict[int, int] = {8: 10, 9: 8, 10: 9}


def interpreted(source: Source) -> OnArrays:
    """Launches in Triton's interpreter, or by Triton's own launcher."""
    text = source.text
    if interpreter.is_asked_for():
        # the interpreter multiplies in f32 at any precision, and has no libdevice
        text = text.replace(SPLIT, "ieee").replace("libdevice.exp(", "tl.exp(")
    kernel = build.function(text, source.name)
    places = {name: i for i, name in enumerate(source.parameters)}

    def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        tensors = [*inputs, *outputs]
        extra: list[Any] = []
        for d in source.descriptors:
            from triton.tools.tensor_descriptor import TensorDescriptor

            matrix = tensors[places[d.memory]].view(d.shape)
            extra.append(TensorDescriptor.from_tensor(matrix, list(d.block)))
        options = {"num_warps": source.warps, "num_stages": source.stages}
        kernel[(source.programs,)](*tensors, *extra, **options)

    return OnArrays(run)


def parameter_sizes(ptx: str) -> list[int]:
    """Bytes of each parameter of a module's only kernel."""
    head = ptx[ptx.index(".entry") : ptx.index("\n)", ptx.index(".entry"))]
    found = re.findall(r"\.param (?:\.align \d+ )?\.(\w+)[^\n\[,]*(?:\[(\d+)\])?", head)
    return [_BYTES[kind] * int(count or 1) for kind, count in found]


def loaded(
    source: Source, binary: build.Binary, symbol: str, device: torch.device
) -> LoadedKernel | None:
    """Loads a kernel through the driver; None if its calling convention is not the expected one."""
    meta = binary.meta
    maps = meta.get("tensordesc_meta") or [None] * len(source.descriptors)
    plain = not meta["global_scratch_size"] and not meta["profile_scratch_size"]
    plain &= not meta["launch_cooperative_grid"] and not meta["launch_pdl"]
    wanted = [8] * len(source.parameters)
    for d in source.descriptors:
        wanted += [128, *(4 for _ in d.shape), *(8 for _ in d.shape)]
    wanted += [8, 8]  # scratch memory
    if not plain or meta["num_ctas"] != 1 or None in maps:
        return None
    if parameter_sizes(binary.stages["ptx"]) != wanted:
        return None
    number = device.index if device.index is not None else torch.cuda.current_device()
    with torch.cuda.device(number):
        function = Function(named(binary.cubin, symbol), symbol, int(meta["shared"]), number)
    threads = (32 * source.warps, 1, 1)
    return LoadedKernel(function, source.programs, threads, device, _arguments(source, maps))


def _arguments(source: Source, maps: Sequence[Any]) -> list[Argument]:
    """Pointers, then each descriptor's map, sizes and strides, then two null scratch pointers."""
    places = {name: i for i, name in enumerate(source.parameters)}
    found: list[Argument] = list(range(len(source.parameters)))
    for d, m in zip(source.descriptors, maps, strict=True):
        kind = int(m["elem_type"])
        found.append(
            TensorMapArgument(
                places[d.memory],
                d.shape,
                tuple(m["block_size"]),
                _KINDS.get(kind, kind),
                int(m["swizzle"]),
                int(m["elem_size"]),
            )
        )
        found += [ctypes.c_int32(size) for size in d.shape]
        found += [ctypes.c_int64(math.prod(d.shape[i + 1 :])) for i in range(len(d.shape))]
    return [*found, ctypes.c_uint64(0), ctypes.c_uint64(0)]
