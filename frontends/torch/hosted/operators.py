"""Registers a hosted operator in torch: fake, autograd, autocast, vmap, and our lowering.

The operator is `torch.ops.stack.<family>_<operator>`. A call checks shapes by the axis rule. Then
it runs the hand-written kernel for its operands, or the decomposition in torch if there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stack.frameworks import torch_private as private
from stack.frontends.torch.aten.lowering import LOWERINGS, Context
from stack.frontends.torch.importer.graph import import_graph
from stack.frontends.torch.replay.space import callable_of
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, dtype_of
from stack.frontends.torch.tensors.autocast import without_autocast
from stack.frontends.torch.tracing.functional import decompositions
from stack.hosted import Kernel, Op
from stack.hosted.nodes import custom, decomposed
from stack.ir.axes import Rule
from stack.ir.func import Func
from stack.ir.types import TensorType

Tensor = torch.Tensor
# true for calls by the user; compiled programs call operators too, and must not wait for a GPU
_BY_NAME = ContextVar("by_name", default=False)
_SCHEMA = {bool: "bool", int: "int", float: "float", str: "str"}


def operator(made: Op) -> Callable[..., Any]:
    """Define the operator in torch; returns a function of tensors and named attributes."""
    short = made.name.replace(".", "_")
    _Torch(made).define(f"stack::{short}")
    overload = getattr(torch.ops.stack, short).default
    LOWERINGS[str(overload)] = _lowering(made)

    def call(*tensors: Tensor, **attributes: Any) -> Any:
        if torch.compiler.is_compiling():
            return overload(*tensors, **attributes)
        token = _BY_NAME.set(True)
        try:
            return overload(*tensors, **attributes)
        finally:
            _BY_NAME.reset(token)

    return call


def _lowering(made: Op) -> Callable[..., Any]:
    count = len(made.operands)

    def lower(cx: Context, *args: Any, **named: Any) -> Any:
        attributes = dict(zip(made.attributes, args[count:])) | named
        results = custom(cx.b, made, args[:count], attributes)
        return results[0] if made.results == 1 else tuple(results)

    return lower


class _Torch:
    """Torch's registrations of one operator. `args` are tensors, then all attributes, in order."""

    def __init__(self, made: Op) -> None:
        self.made = made
        self.count = len(made.operands)

    def define(self, name: str) -> None:
        tensors = [f"Tensor {n}" for n in self.made.operands]
        rest = [
            f"{_SCHEMA[a.kind]} {a.name}={_default(a.default)}"
            for a in self.made.attributes.values()
        ]
        results = ", ".join(["Tensor"] * self.made.results)
        results = results if self.made.results == 1 else f"({results})"
        schema = f"({', '.join(tensors + rest)}) -> {results}"
        known = torch.library.custom_op(name, self.run, mutates_args=(), schema=schema)
        known.register_fake(self.fake)
        known.register_autograd(self.backward, setup_context=self.save)
        known.register_vmap(self.batch)
        self.operator = known
        if self.made.autocast:
            self.library = torch.library.Library("stack", "FRAGMENT")
            for key in ("AutocastCPU", "AutocastCUDA"):
                self.library.impl(name.partition("::")[2], self._autocast(key[8:].lower()), key)

    # ---- values

    def _split(self, args: Sequence[Any]) -> tuple[list[Tensor], dict[str, Any]]:
        names = list(self.made.attributes)
        return list(args[: self.count]), dict(zip(names, args[self.count :], strict=True))

    def run(self, *args: Any) -> Any:
        tensors, attributes = self._split(self._filled(args))
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise ValueError(f"{self.made.name}: arguments on {', '.join(map(str, devices))}")
        types = _types(tensors)
        decomposed(self.made, types, tuple(sorted(attributes.items())))  # raises for wrong shapes
        self._refuse(tensors, attributes)
        kernel = self.made.kernel_for(tensors[0].device.type, types, attributes)
        if kernel is not None:
            return launched(kernel, tensors, attributes)
        with without_autocast(tensors[0].device):
            made = self._replay(types, attributes, tensors[0].device)(*tensors)
        return _only(_own(made, tensors))

    def _refuse(self, tensors: Sequence[Tensor], attributes: Mapping[str, Any]) -> None:
        """Raises RuleError if values of operands or attributes are outside the operator's limits.

        Skipped on a GPU if the call is not the user's, or while a CUDA graph is captured: the check
        would wait for the GPU.
        """
        on_gpu = tensors[0].is_cuda and self.made.has_limits
        if on_gpu and (not _BY_NAME.get() or torch.cuda.is_current_stream_capturing()):
            return
        self.made.check_values(tensors, attributes, _values)

    def _filled(self, args: Sequence[Any]) -> list[Any]:
        defaults = [a.default for a in self.made.attributes.values()]
        return [*args, *defaults[len(args) - self.count :]]

    def _replay(
        self, types: tuple[TensorType, ...], attributes: Mapping[str, Any], device: torch.device
    ) -> Callable[..., tuple[Tensor, ...]]:
        return _replay(self.made, types, tuple(sorted(attributes.items())), str(device))

    def fake(self, *args: Any) -> Any:
        tensors, attributes = self._split(self._filled(args))
        shapes = self._shapes([tuple(t.shape) for t in tensors])
        types = tuple(
            TensorType(dtype_of(t.dtype), tuple(_stand_in(s) for s in t.shape)) for t in tensors
        )
        func = decomposed(self.made, types, tuple(sorted(attributes.items())))
        made = tuple(
            tensors[0].new_empty(shape, dtype=TORCH_DTYPE[r.dtype])
            for shape, r in zip(shapes, func.results, strict=True)
        )
        return _only(made)

    def _shapes(self, shapes: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if all(type(s) is int for shape in shapes for s in shape):
            return self.made.shapes(shapes)
        return _symbolic_shapes(self.made.rule_for([len(s) for s in shapes]), shapes)

    # ---- derivatives

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, ctx.attributes = self._split(inputs)
        outputs = output if isinstance(output, tuple) else (output,)
        kept = outputs if self.made.gradient is not None else ()
        ctx.save_for_backward(*tensors, *kept)

    def backward(self, ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        tensors = list(saved[: self.count])
        floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
        with without_autocast(tensors[0].device):
            if self.made.gradient is not None:
                found = self.made.gradient.on("torch")(*saved, *gradients, **ctx.attributes)
            else:
                found = self._derivative(tensors, floats, gradients, ctx.attributes)
        found = found if isinstance(found, tuple) else (found,)
        by_place = dict(zip(floats, found, strict=True))
        rest = [None] * len(self.made.attributes)
        return (*(by_place.get(i) for i in range(self.count)), *rest)

    def _derivative(
        self,
        tensors: Sequence[Tensor],
        floats: Sequence[int],
        gradients: Sequence[Tensor],
        attributes: Mapping[str, Any],
    ) -> tuple[Tensor, ...]:
        """Returns the vector-Jacobian product of the decomposition, which is recomputed."""
        replay = self._replay(_types(tensors), attributes, tensors[0].device)

        def of_floats(*given: Tensor) -> tuple[Tensor, ...]:
            held = list(tensors)
            for place, tensor in zip(floats, given, strict=True):
                held[place] = tensor
            return tuple(r for r in replay(*held) if r.is_floating_point())

        pull: Any = torch.func.vjp(of_floats, *(tensors[i] for i in floats))[1]
        return pull(tuple(g for g in gradients if g.is_floating_point()))

    # ---- batches, autocast

    def batch(self, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        """Batches one call if the rule has `...` for the batch, else makes one call per element."""
        tensors, attributes = self._split(self._filled(args))
        dims = list(in_dims[: self.count])
        takes = self.made.batched()
        call = self.made.on("torch")
        fits = all(takes[i] or d is None for i, d in enumerate(dims))
        if fits and "..." in self.made.rule.partition("->")[2]:
            moved = [
                (t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0))
                if take
                else t
                for t, d, take in zip(tensors, dims, takes, strict=True)
            ]
            out = call(*moved, **attributes)
        else:
            each = [
                call(
                    *(t if d is None else t.select(d, i) for t, d in zip(tensors, dims)),
                    **attributes,
                )
                for i in range(info.batch_size)
            ]
            parts = zip(*(e if isinstance(e, tuple) else (e,) for e in each))
            out = _only(tuple(map(torch.stack, parts)))
        return out, (0 if isinstance(out, Tensor) else (0,) * len(out))

    def _autocast(self, device: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            wide = self.made.autocast == "f32"
            target = torch.float32 if wide else torch.get_autocast_dtype(device)
            with private.below_autocast(device):
                return self.operator(*(_cast(a, target, device) for a in args))

        return run


def _values(tensor: Tensor) -> np.ndarray:
    """Returns the array to check an operand's values by: integers as they are, floats as zeros."""
    if tensor.is_floating_point():
        return np.broadcast_to(np.float32(0), tuple(tensor.shape))
    return tensor.detach().cpu().numpy()


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    """Casts floats on the device to the autocast type; f64 is kept, as in torch."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value if value.dtype is torch.float64 or value.device.type != device else value.to(dtype)


@cache
def _replay(
    made: Op, types: tuple[TensorType, ...], attributes: tuple[tuple[str, Any], ...], device: str
) -> Callable[..., tuple[Tensor, ...]]:
    return callable_of(decomposed(made, types, attributes), device)


def traced(fn: Callable[..., Any], types: Sequence[TensorType]) -> Func:
    """Traces a function of tensors to ATen ops and imports it.

    Runs on a thread of its own: torch's modes are per thread, and this one may be capturing.
    """

    def trace() -> Func:
        fakes = private.FakeTensorMode(allow_non_fake_inputs=True)
        with fakes, torch.no_grad():
            given = [
                torch.empty(tuple(map(int, t.shape)), dtype=TORCH_DTYPE[t.dtype]) for t in types
            ]
            functional = torch.func.functionalize(lambda *xs: fn(*xs), remove="mutations_and_views")
            graph = make_fx(functional, decompositions(), pre_dispatch=False)(*given)
        return import_graph(graph, "decomposition", trusted=True).func

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(trace).result()


def launched(kernel: Kernel, tensors: Sequence[Tensor], attributes: Mapping[str, Any]) -> Any:
    """Run a hand-written kernel on tensors; on a CPU it gets NumPy arrays."""
    dense = [t.detach().contiguous() for t in tensors]
    if kernel.device == "cpu":
        out = kernel(*(t.numpy() for t in dense), **attributes)
        arrays = out if isinstance(out, tuple) else (out,)
        results = tuple(torch.from_numpy(np.asarray(a, order="C")) for a in arrays)
    else:
        with torch.cuda.device(tensors[0].device):
            out = kernel(*dense, **attributes)
        results = out if isinstance(out, tuple) else (out,)
    return _only(_own(results, tensors))


def _own(results: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns results as contiguous tensors, each at the start of its own memory.

    Torch requires this of an operator. A result that shares memory with `others` is copied.
    """
    taken = {t.untyped_storage().data_ptr() for t in others}  # 0 if there are no elements
    found: list[Tensor] = []
    for made in results:
        dense = made.contiguous()  # unchanged if it is contiguous
        is_shared = dense.untyped_storage().data_ptr() in taken
        is_inside = dense.storage_offset() > 0
        found.append(dense.clone() if is_shared or is_inside else dense)
        taken.add(found[-1].untyped_storage().data_ptr())
    return tuple(found)


def _only(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _types(tensors: Sequence[Tensor]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(t.dtype), tuple(int(s) for s in t.shape)) for t in tensors)


def _stand_in(size: Any) -> int:
    """Returns a number in place of a traced size, to compute element types: any would do."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 8


def _symbolic_shapes(rule: Rule, shapes: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Computes the shapes of results from traced sizes."""
    found: dict[str, Any] = {}
    pairs = [(a, s) for o, shape in zip(rule.inputs, shapes) for a, s in zip(o, shape, strict=True)]
    for axis, size in sorted(pairs, key=lambda pair: len(pair[0].names)):
        known = math.prod(found[n] for n in axis.names if n in found)
        missing = [n for n in axis.names if n not in found]
        if missing:
            found[missing[0]] = size // known
        else:
            private.check_sizes(
                known == size, lambda axis=axis: f"axis {axis} of {rule} has two sizes"
            )
    return [tuple(math.prod(found[n] for n in a.names) for a in o) for o in rule.outputs]


def _default(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
