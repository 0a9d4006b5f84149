"""Registers a hosted operator as a JAX primitive: types, derivative, batching, lowering, import.

Under `jax.jit`, XLA calls the hand-written kernel if there is one, else it compiles the
decomposition. On a GPU the kernel gets JAX's buffers as torch tensors, on JAX's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from stack.frontends.jax.capture.capture import capture
from stack.frontends.jax.lax.lowering import LOWERINGS, Site, dtype_of, jax_dtype
from stack.frontends.jax.replay.space import replay
from stack.hosted import Kernel, Op
from stack.hosted.declaration import DEVICES
from stack.hosted.nodes import custom, decomposed
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.run.trace import is_installed

Array = Any
Attributes = tuple[tuple[str, Any], ...]


def operator(made: Op) -> Callable[..., Any]:
    """Define the primitive; returns a function of arrays and named attributes."""
    rules = _Rules(made)
    LOWERINGS[rules.primitive.name] = _lowering(made)
    if made.gradient is None:
        return rules.call

    def call(*arrays: Any, **attributes: Any) -> Any:
        return _with_gradient(rules, tuple(sorted(made.read(attributes).items())))(*arrays)

    return call


def _lowering(made: Op) -> Callable[..., Any]:
    def lower(site: Site, *args: Node, **attributes: Any) -> list[Node]:
        return custom(site.b, made, args, attributes)

    return lower


class _Rules:
    """JAX's rules of one primitive. `attributes` are all attributes of the operator."""

    def __init__(self, made: Op) -> None:
        self.made = made
        self.primitive = Primitive(f"stack_{made.name.replace('.', '_')}")
        self.primitive.multiple_results = True
        self.primitive.def_impl(self._run)
        self.primitive.def_abstract_eval(self._types)
        batching.primitive_batchers[self.primitive] = self._batch
        ad.primitive_jvps[self.primitive] = self._jvp
        mlir.register_lowering(self.primitive, mlir.lower_fun(self._decomposed, True))
        for device in DEVICES:
            lowered = mlir.lower_fun(partial(self._on, device), True)
            mlir.register_lowering(self.primitive, lowered, platform=device)

    def call(self, *arrays: Any, **attributes: Any) -> Any:
        """Calls the primitive. Returns one array, or a tuple for several results."""
        held, given = self.made.read(attributes), [jnp.asarray(a) for a in arrays]
        self._types(*given, **held)  # raises for wrong types
        out = self.primitive.bind(*given, **held)
        return out[0] if self.made.results == 1 else tuple(out)

    # ---- values

    def _run(self, *arrays: Array, **attributes: Any) -> Sequence[Array]:
        """Checks the values of the operands and runs the primitive, jitted, for an eager call.

        JAX also calls this for eager calls within `grad` and `vmap`.
        """
        self.made.check_values(arrays, attributes)
        return _jitted(self.primitive, tuple(sorted(attributes.items())))(*arrays)

    def _types(self, *avals: Any, **attributes: Any) -> list[Any]:
        func = decomposed(self.made, _tensor_types(avals), tuple(sorted(attributes.items())))
        return [ShapedArray(r.tensor.shape, jax_dtype(r.tensor.dtype)) for r in func.results]

    def _decomposed(self, *arrays: Array, **attributes: Any) -> Sequence[Array]:
        func = decomposed(self.made, _tensor_types(arrays), tuple(sorted(attributes.items())))
        return replay(func)(*arrays)

    def _on(self, device: str, *arrays: Array, **attributes: Any) -> Sequence[Array]:
        kernel = self.made.kernel_for(device, _tensor_types(arrays), attributes)
        if kernel is None or (device == "cuda" and not is_installed("torch")):
            return self._decomposed(*arrays, **attributes)
        return call_kernel(kernel, self._types(*arrays, **attributes), arrays, attributes)

    # ---- derivatives, batches

    def _jvp(
        self, primals: Sequence[Array], tangents: Sequence[Any], **attributes: Any
    ) -> tuple[Any, Any]:
        """Computes the decomposition's derivative; primal values are the operator's own."""
        out = self.primitive.bind(*primals, **attributes)
        moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

        def of_moving(*given: Array) -> Sequence[Array]:
            held = list(primals)
            for place, array in zip(moving, given, strict=True):
                held[place] = array
            return self._decomposed(*held, **attributes)

        _, made = jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
        return out, list(made)

    def _batch(
        self, arrays: Sequence[Array], dims: Sequence[int | None], **attributes: Any
    ) -> tuple[Any, Any]:
        """Batches one call if the rule has `...` for the batch, else uses the decomposition."""
        takes = self.made.batched()
        fits = all(take or d is None for take, d in zip(takes, dims))
        if not fits or "..." not in self.made.rule.partition("->")[2]:
            return self._each(arrays, dims, attributes), (0,) * self.made.results
        (size,) = {a.shape[d] for a, d in zip(arrays, dims) if d is not None}
        moved = [
            (jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0))
            if take
            else a
            for a, d, take in zip(arrays, dims, takes, strict=True)
        ]
        return self.primitive.bind(*moved, **attributes), (0,) * self.made.results

    def _each(
        self, arrays: Sequence[Array], dims: Sequence[int | None], attributes: Mapping[str, Any]
    ) -> Any:
        """Applies the decomposition to each batch element: by `vmap` if JAX can batch its ops."""
        run = lambda *xs: tuple(self._decomposed(*xs, **attributes))
        try:
            return jax.vmap(run, tuple(dims))(*arrays)
        except NotImplementedError:  # ragged matmuls with different group sizes
            moving = [i for i, d in enumerate(dims) if d is not None]
            rows = [jnp.moveaxis(arrays[i], dims[i] or 0, 0) for i in moving]
            place = {i: n for n, i in enumerate(moving)}
            return jax.lax.map(
                lambda xs: run(*(xs[place[i]] if i in place else a for i, a in enumerate(arrays))),
                rows,
            )


@cache
def _jitted(primitive: Any, attributes: Attributes) -> Callable[..., Any]:
    return jax.jit(lambda *arrays: primitive.bind(*arrays, **dict(attributes)))


@cache
def _with_gradient(rules: _Rules, attributes: Attributes) -> Callable[..., Any]:
    """Returns the call with the operator's own gradient, used by reverse mode."""
    made, given = rules.made, dict(attributes)
    assert made.gradient is not None
    gradient = made.gradient.on("jax")

    @jax.custom_vjp
    def run(*arrays: Array) -> Any:
        return rules.call(*arrays, **given)

    def forward(*arrays: Array) -> tuple[Any, Any]:
        out = rules.call(*arrays, **given)
        return out, (arrays, out if isinstance(out, tuple) else (out,))

    def backward(saved: Any, gradients: Any) -> tuple[Any, ...]:
        arrays, out = saved
        told = gradients if isinstance(gradients, tuple) else (gradients,)
        found = gradient(*arrays, *out, *told, **given)
        held = iter(found if isinstance(found, tuple) else (found,))
        return tuple(
            next(held)
            if jnp.issubdtype(jnp.result_type(a), jnp.floating)
            else np.zeros(np.shape(a), jax.dtypes.float0)
            for a in arrays
        )

    run.defvjp(forward, backward)
    return run


def call_kernel(
    kernel: Kernel, types: Sequence[Any], arrays: Sequence[Array], attributes: Mapping[str, Any]
) -> Sequence[Array]:
    """Calls a hand-written kernel from inside a compiled program."""

    def on_cpu(_context: Any, outs: Any, *given: Any) -> None:
        made = kernel(*(np.ascontiguousarray(np.asarray(a)) for a in given), **attributes)
        for out, result in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
            np.asarray(out)[...] = result

    def on_cuda(context: Any, outs: Any, *given: Any) -> None:
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(context.stream)):
            made = kernel(*map(torch.from_dlpack, given), **attributes)
            for out, result in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
                torch.from_dlpack(out).copy_(result)

    fill = on_cpu if kernel.device == "cpu" else on_cuda
    specs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    return buffer_callback(fill, specs)(*arrays)


def _tensor_types(arrays: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(a.dtype), tuple(map(int, a.shape))) for a in arrays)


def traced(fn: Callable[..., Any], types: Sequence[TensorType]) -> Func:
    """Traces a function of JAX arrays to IR; works also while another capture is running."""
    given = (jax.ShapeDtypeStruct(t.shape, jax_dtype(t.dtype)) for t in types)
    return capture(lambda *arrays: fn(*arrays), tuple(given)).func
