"""Conversion of torch tensors and element types; encoding of opaque calls."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stack.errors import NoElementType, StackError
from stack.frameworks.torch_private import OpOverloadPacket, memory_id
from stack.frontends.torch.tensors.random_ops import with_strides
from stack.ir.dim import Expr
from stack.ir.node import Node
from stack.ir.types import BF16, DTYPES, LONG_NAMES, DType, dtype_named
from stack.run.input_specs import parse_input

_NAMES = {
    "bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32,
    "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "f64": torch.float64, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
TORCH_DTYPE: dict[DType, torch.dtype] = {DTYPES[n]: t for n, t in _NAMES.items()}
# 8-bit floats; torch has names for narrower integers, but no arrays of them
TORCH_DTYPE |= {
    d: getattr(torch, n)
    for n, d in LONG_NAMES.items()
    if n.startswith("float8") and hasattr(torch, n)
}
STACK_DTYPE: dict[torch.dtype, DType] = {t: d for d, t in TORCH_DTYPE.items()}

# Namespaces of operators that a saved program may call.
NAMESPACES = {"aten", "prims", "torchvision", "stack"}
_REFUSED = re.compile(r"aten\.(from_file|save|_print|_test)")


def dtype_of(dtype: torch.dtype) -> DType:
    """Returns the element type of the IR. Raises NoElementType if there is none."""
    if dtype not in STACK_DTYPE:
        raise NoElementType(dtype, DTYPES)
    return STACK_DTYPE[dtype]


@functools.cache
def saturates(dtype: DType) -> bool:
    """True if this torch version saturates casts to an 8-bit float."""
    return bool(torch.full((), 1e30).to(TORCH_DTYPE[dtype]).float().isfinite())


def device_of(values: Iterable[Any]) -> str:
    """Returns the device of the tensors among values; "cpu" if there are none.

    CPU scalars may be mixed with tensors on a GPU. Raises StackError for two GPUs.
    """
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    found = {str(t.device) for t in tensors if t.device.type != "cpu"}
    if len(found) > 1:
        raise StackError(f"one program on several devices: {', '.join(sorted(found))}; move it")
    return found.pop() if found else "cpu"


def check_results(results: Iterable[Any], device: str) -> None:
    """Raise StackError if a program leaves a traced result on another device."""
    kind = torch.device(device).type
    for number, result in enumerate(results):
        value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and value.device.type != kind:
            line = (result.meta.get("stack_trace") or "").strip().split("\n")[0]
            raise StackError(
                f"result {number} is moved to {value.device} in a program on {device}; move it"
                f" after the call instead  {line}"
            )


def _checked(tensor: Any, dtype: DType) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"got {type(tensor).__name__}, not a tensor")
    if tensor.dtype is not TORCH_DTYPE[dtype]:
        raise TypeError(f"got {tensor.dtype}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"got a tensor of layout {tensor.layout}; only strided ones are supported")
    return tensor


def to_device(tensors: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[torch.Tensor]:
    """Returns dense tensors on the device; a tensor that already is one is returned unchanged."""
    place = torch.device(device)
    return [_moved(t, d, place) for t, d in zip(tensors, dtypes, strict=True)]


def _moved(tensor: Any, dtype: DType, device: torch.device) -> torch.Tensor:
    held = _checked(tensor, dtype)
    if held.device == device and held.is_contiguous():
        if not (held.is_conj() or held.is_neg()):
            return held
    return held.to(device).resolve_conj().resolve_neg().contiguous()


def from_device(arrays: Sequence[Any]) -> list[torch.Tensor]:
    """Wraps device arrays as tensors."""
    return [a if isinstance(a, torch.Tensor) else torch.from_dlpack(a) for a in arrays]


def is_dense(tensor: torch.Tensor, device: str = "cpu") -> bool:
    """True if a tensor's memory, on this device, can be used directly as a storage array."""
    is_there = tensor.is_cpu if device == "cpu" else _is_on(tensor, torch.device(device))
    return is_there and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    own = tensor.device
    return own.type == device.type and device.index in (None, own.index)


def to_numpy(tensor: Any, dtype: DType) -> np.ndarray:
    """Returns the storage of a tensor, without a copy if it is dense on the CPU."""
    held = _checked(tensor, dtype)
    if held.requires_grad:
        held = held.detach()
    if not is_dense(held):
        held = held.cpu().resolve_conj().resolve_neg().contiguous()
    if dtype.kind == "s":
        return held.view(torch.uint8).numpy()
    # Forced: the zeros of a forward-mode derivative have no memory until they are asked for.
    return (held.view(torch.uint16) if dtype is BF16 else held).numpy(force=True)


def from_numpy(array: np.ndarray, dtype: DType) -> torch.Tensor:
    """Returns a tensor over the storage, without a copy if possible."""
    array = np.asarray(array)
    flags = array.flags
    if not flags.c_contiguous or not flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(TORCH_DTYPE[dtype]) if dtype is BF16 or dtype.kind == "s" else tensor


def stamp(tensor: torch.Tensor) -> tuple[Hashable, Hashable]:
    """Returns a tensor's memory and version; the version of an inference tensor is None."""
    memory = memory_id(tensor), tensor.data_ptr()
    return memory, None if tensor.is_inference() else tensor._version


def watch(tensor: torch.Tensor) -> Callable[[], bool]:
    """Returns a function that is true while a tensor's storage, and so its id, is in use."""
    storage = StorageWeakRef(tensor.untyped_storage())
    return lambda: not storage.expired()


def random_inputs(specs: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Creates example tensors from texts: `f32[2, 16]`, `i64[2, 16]<100` (values below 100)."""
    generator = torch.Generator().manual_seed(0)
    return tuple(_random(spec, generator) for spec in specs)


def _random(spec: str, generator: torch.Generator) -> torch.Tensor:
    type_, below = parse_input(spec)
    dtype = TORCH_DTYPE[type_.dtype]
    shape = tuple(map(int, type_.shape))
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2 if below is None else below, shape, generator=generator).to(dtype)


# ---- opaque calls: arguments as nested tuples of plain values

# A call is `(args, kwargs)`; `("tensor", i, dtype)` is operand i, followed by strides if the op
# depends on them. An operand that no argument names only orders the call after it.
_PLAIN = (bool, int, float, str, type(None))
Operands = Sequence[torch.Tensor] | Mapping[int, torch.Tensor]


def encode_call(args: Sequence[Any], kwargs: dict[str, Any], operands: list[Node]) -> Any:
    """Encodes the arguments of a torch op as an attribute; appends tensors to `operands`."""
    named = tuple((k, _encode(v, operands)) for k, v in kwargs.items())
    return (tuple(_encode(a, operands) for a in args), named)


def _encode(value: Any, operands: list[Node]) -> Any:
    if isinstance(value, Node):
        operands.append(value)
        return ("tensor", len(operands) - 1, value.dtype.name)
    if isinstance(value, (*_PLAIN, Expr)):
        return ("value", value)
    if isinstance(value, list | tuple):
        return ("list", tuple(_encode(v, operands) for v in value))
    if isinstance(value, DType):
        return ("dtype", value.name)
    if isinstance(value, complex):
        return ("complex", value.real, value.imag)
    if isinstance(value, torch.device):
        return ("device", str(value))
    if isinstance(value, torch.layout | torch.memory_format):
        return ("torch", str(value).removeprefix("torch."))
    raise StackError(f"the argument {value!r} of an opaque call has no text form")


def encode_strides(call: Any, strides: Sequence[Any]) -> Any:
    """Adds `strides[i]` to operand i of an encoded call, if not None."""
    if isinstance(call, tuple) and len(call) == 3 and call[0] == "tensor":
        own = strides[call[1]]
        return call if own is None else (*call, tuple(own))
    return tuple(encode_strides(c, strides) for c in call) if isinstance(call, tuple) else call


def _decode(value: Any, tensors: Operands) -> Any:
    kind = value[0]
    if kind == "tensor":
        _, place, _, *strides = value
        return with_strides(tensors[place], *strides) if strides else tensors[place]
    if kind == "list":
        return [_decode(v, tensors) for v in value[1]]
    if kind == "dtype":
        return TORCH_DTYPE[dtype_named(value[1])]
    if kind == "complex":
        return complex(value[1], value[2])
    if kind == "device":
        return torch.device(value[1])
    if kind == "torch":
        return _ENUMS[value[1]]
    return value[1]


_ENUMS = {
    n: getattr(torch, n)
    for n in (
        "strided",
        "contiguous_format",
        "channels_last",
        "preserve_format",
        "channels_last_3d",
    )
}


def _tensor_dtypes(value: Any, found: dict[int, str]) -> None:
    if isinstance(value, tuple) and value[:1] == ("tensor",):
        found[value[1]] = value[2]
    elif isinstance(value, tuple):
        for item in value:
            _tensor_dtypes(item, found)


def find_operator(target: str) -> Callable[..., Any]:
    """Returns the torch operator named `torch:aten.foo.default`. Raises StackError."""
    name = target.removeprefix("torch:")
    parts = name.split(".")
    if len(parts) != 3 or parts[0] not in NAMESPACES or _REFUSED.match(name):
        known = ", ".join(sorted(NAMESPACES))
        raise StackError(f"no operator {target!r} may be called; namespaces: {known}")
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    is_packet = isinstance(packet, OpOverloadPacket)
    if not is_packet or parts[2] not in packet.overloads():
        raise StackError(f"torch has no operator {name!r}")
    return getattr(packet, parts[2])


def decode_call(call: Any, tensors: Operands) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and named arguments of an opaque call."""
    positional, named = call
    args = [_decode(a, tensors) for a in positional]
    return args, {k: _decode(v, tensors) for k, v in named}


def call_opaque(target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a torch operator on storage arrays."""
    operator = find_operator(target)
    dtypes: dict[int, str] = {}
    _tensor_dtypes(call, dtypes)
    tensors = {i: from_numpy(args[i], dtype_named(name)) for i, name in dtypes.items()}
    positional, named = decode_call(call, tensors)
    with torch.no_grad():
        out = operator(*positional, **named)
    results = [out] if isinstance(out, torch.Tensor) else [t for t in out if t is not None]
    return [to_numpy(t, dtype_of(t.dtype)) for t in results]
