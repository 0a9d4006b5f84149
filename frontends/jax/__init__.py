"""The JAX frontend: imports jaxprs, converts arrays, and calls back into JAX.

Importing this file does not import JAX; using it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import stack.plugins as plugins
from stack.cpython import undisturbed
from stack.errors import StackError
from stack.ir.types import BF16, DType
from stack.run.backend import AddressProgram
from stack.run.input_specs import parse_input
from stack.run.rejected_arguments import capture_as_eager, explain_trace
from stack.wings import part

if TYPE_CHECKING:
    from stack.run.frontend import Arrays, Calls, Captured, Entry, Finds

_FLAGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion"),
    *("jax_default_prng_impl", "jax_threefry_partitionable", "jax_disable_jit", "jax_platforms"),
)


class JaxFrontend:
    """`stack.run.frontend.Frontend` for JAX."""

    name = "jax"
    runs_loops = True  # XLA does

    def accepts(self, fn: Any, args: Sequence[Any]) -> bool:
        """True if `fn` gets JAX arrays, or gets no arrays and its module uses JAX."""
        jax = sys.modules.get("jax")
        if jax is None or not callable(fn) or not hasattr(jax, "tree_util"):
            return False
        leaves = jax.tree_util.tree_leaves(args)
        if any(type(leaf).__module__.split(".")[0] == "torch" for leaf in (fn, *leaves)):
            return False
        if any(isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) for leaf in leaves):
            return True
        return _uses_jax(fn)

    def entry(self, target: Any) -> Entry | None:
        return None

    @undisturbed
    def capture(
        self, fn: Any, args: Sequence[Any], *, dynamic: bool = False, device: str = ""
    ) -> Captured:
        """Trace `fn` to a jaxpr and import it; see `capture.capture.capture`."""
        from stack.frontends.jax.capture.capture import capture

        with explained():
            return capture(fn, tuple(args), dynamic=dynamic, device=device)

    def calls(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> Calls:
        name = options.get("backend")
        backend = plugins.load("stack.backends", name) if name else None
        if backend is not None and backend.peer is not None:
            return part("calls", "jax-peer-calls")(self, fn, dynamic, options)
        return part("calls", "jax-calls")(fn, dynamic, options)

    def to_numpy(self, array: Any, dtype: DType) -> np.ndarray:
        """Returns the storage of a JAX array; a view if it is on the CPU. bf16 becomes uint16."""
        from stack.frontends.jax.jaxpr.element_words import to_words
        from stack.frontends.jax.lax.lowering import dtype_of

        held = np.asarray(to_words(array))
        found = dtype_of(held.dtype)
        if found != dtype:
            raise TypeError(f"expected {dtype} values, got {found}")
        if dtype.kind == "s":
            return held.view(dtype.numpy)
        return held.view(np.uint16) if dtype is BF16 else held

    def from_numpy(self, array: np.ndarray, dtype: DType) -> Any:
        """Returns a JAX array of the storage; 64-bit types keep 64 bits even if x64 is disabled."""
        import jax

        from stack.frontends.jax.lax.lowering import jax_dtype

        held = np.asarray(array)
        if dtype is BF16 or dtype.kind == "s":
            held = held.view(jax_dtype(dtype))
        if dtype.bits < 64 and dtype.name != "c64":
            return jax.numpy.asarray(held)
        with jax.enable_x64(True):
            return jax.numpy.asarray(held)

    def direct(
        self, program: AddressProgram, arrays: Arrays, returned: Sequence[DType], kept: Finds | None
    ) -> None:
        """Returns None: JAX only creates arrays by copying, so there is no call by address."""
        return None

    def stamp(self, array: Any) -> tuple[Hashable, Hashable]:
        """Returns an id and a constant version: JAX arrays never change."""
        return id(array), 0

    def watch(self, array: Any) -> Callable[[], bool]:
        """Returns a function that is always true and keeps the array alive."""
        return lambda: array is not None

    def to_device(self, arrays: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[Any]:
        """Moves arrays to a device; arrays already there are returned unchanged."""
        from stack.frontends.jax.capture.device_arrays import to_device

        return [to_device(a, d, device) for a, d in zip(arrays, dtypes, strict=True)]

    def from_device(self, arrays: Sequence[Any]) -> list[Any]:
        """Wraps another library's device arrays as JAX arrays, without copies."""
        from stack.frontends.jax.capture.device_arrays import from_device

        return [from_device(a) for a in arrays]

    def call_opaque(self, target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Bind the primitive that an `opaque` node names, on storage arrays."""
        import jax

        from stack.frontends.jax.lax.lowering import dtype_of
        from stack.frontends.jax.lax.opaque_calls import bind, operand_dtypes

        dtypes = operand_dtypes(call, len(args))
        wide = any(d.bits >= 64 for d in dtypes)
        with jax.enable_x64(wide or bool(jax.config.read("jax_enable_x64"))):
            given = [self.from_numpy(a, d) for a, d in zip(args, dtypes, strict=True)]
            results = bind(target, call, given)
        return [self.to_numpy(r, dtype_of(r.dtype)) for r in results]

    def breaks(self, fn: Any, args: Sequence[Any]) -> list[str]:
        """Returns no breaks: JAX traces a program as a whole, or this raises JAX's error."""
        capture_as_eager(self, fn, args)
        return []

    def flags(self) -> dict[str, Any]:
        """Returns JAX's settings of precision, element types, random numbers and platforms."""
        import jax

        return {name: getattr(jax.config, name) for name in _FLAGS}

    def random_inputs(self, specs: Sequence[str]) -> tuple[Any, ...]:
        """Creates arguments from texts like `f32[2,16]`: normal floats, integers from 0 to 15, or
        below 100 for `i64[2,16]<100`.
        """
        import jax

        from stack.frontends.jax.lax.lowering import jax_dtype

        rng = np.random.default_rng(0)
        out: list[Any] = []
        for spec in specs:
            type_, below = parse_input(spec)
            shape, dtype = type_.shape, type_.dtype
            high = 16 if below is None else below
            is_float = dtype.kind in "fc"
            drawn = rng.standard_normal(shape) if is_float else rng.integers(0, high, shape)
            held = drawn > 7 if dtype.kind == "b" else np.asarray(drawn)
            out.append(jax.numpy.asarray(held.astype(jax_dtype(dtype))))
        return tuple(out)

    def train_runs(self, fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        return part("calls", "jax-training")(fn, args, options)


def _uses_jax(fn: Callable[..., Any]) -> bool:
    """True if a function is JAX's, or if its globals or closure refer to JAX."""
    inner = getattr(fn, "__wrapped__", fn)
    if type(fn).__module__.startswith(("jax", "jaxlib")):
        return True
    if str(getattr(inner, "__module__", "")).split(".")[0] in ("jax", "jaxlib"):
        return True
    values = list(getattr(inner, "__globals__", {}).values())
    for cell in getattr(inner, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue
    roots = (str(getattr(v, "__name__", "")).split(".")[0] for v in values if _is_module(v))
    return any(root == "jax" for root in roots)


def _is_module(value: Any) -> bool:
    return type(value).__name__ in ("module", "LazyModule")


@contextmanager
def explained() -> Iterator[None]:
    """Adds a note with the source line to exceptions of a program that JAX traces."""
    from jax import errors

    try:
        yield
    except StackError:
        raise
    except Exception as error:
        kinds = (errors.JAXTypeError, errors.JAXIndexError, errors.UnexpectedTracerError)
        explain_trace(error, is_untraced=isinstance(error, kinds))
        raise


FRONTEND = JaxFrontend()
