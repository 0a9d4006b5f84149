"""Capture of a JAX function: parameter names, jaxpr, and conversion of arguments and results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export
from jax.core import ShapedArray, Tracer
from jax.errors import InconclusiveDimensionOperation

from stack.errors import NoElementType
from stack.frameworks.jax_private import weakly_typed
from stack.frontends.jax.capture.device_arrays import device_of
from stack.frontends.jax.capture.signature import parameter_names, split
from stack.frontends.jax.jaxpr.dims import DimReader
from stack.frontends.jax.jaxpr.element_words import from_words, is_key, to_words
from stack.frontends.jax.jaxpr.settings import changed, settings
from stack.frontends.jax.lax.lowering import Importer, Shared, constants_of, dtype_of, is_big
from stack.ir.builder import constant, param
from stack.ir.node import Node, unique_name
from stack.ir.types import BOOL
from stack.run.frontend import Captured

_CAPTURING: ContextVar[bool] = ContextVar("capturing", default=False)


@dataclass(frozen=True)
class Leaf:
    """One array among the arguments: its name and JAX's abstract value."""

    name: str
    aval: Any

    @property
    def text(self) -> str:
        """Type and shape, as `f32[2, 16]`; `weak` if promotion ignores the type, as of 2.0."""
        dtype = self.aval.dtype if is_key(self.aval) else dtype_of(self.aval.dtype)
        weak = "weak " if self.aval.weak_type else ""
        return f"{weak}{dtype}[{', '.join(map(str, self.aval.shape))}]"


def capture(
    fn: Callable[..., Any], args: tuple[Any, ...], *, dynamic: bool = False, device: str = ""
) -> Captured:
    """Trace `fn` on the types of `args` and import the jaxpr.

    If `fn` is a `jax.jit` function, `args` may include static ones; they become part of the
    program. Sizes are those of `args`. With `dynamic`, the leading sizes of array arguments become
    symbols: `b` for the batch and `s` for the sequence, as far as the function can be traced with
    them; `notes["dynamic"]` lists the result. `device` is by default that of the arrays.
    """
    form, args = split(fn, args, {})
    fn = form.of_arrays(fn)
    return _dynamic(fn, args, device) if dynamic else _static(fn, args, device)


def traced(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """Traces a function; returns its jaxpr, and the types of its results in their structure."""
    token = _CAPTURING.set(True)
    try:
        return jax.make_jaxpr(fn, return_shape=True)(*args)
    finally:
        _CAPTURING.reset(token)


def is_capturing() -> bool:
    """True while JAX traces for one of our captures."""
    return _CAPTURING.get()


def _static(fn: Callable[..., Any], args: tuple[Any, ...], device: str) -> Captured:
    return captured_from(fn, args, *traced(fn, args), device)


def _dynamic(fn: Callable[..., Any], args: tuple[Any, ...], device: str) -> Captured:
    reasons: list[str] = []
    for names in (("b", "s"), ("b",)):
        specs, limits = _symbolic(fn, args, names)
        if not limits:
            continue
        try:
            found = captured_from(fn, args, *traced(fn, specs), device)
        except (TypeError, ValueError, InconclusiveDimensionOperation) as error:
            reasons.append(f"not with {', '.join(names)}: {str(error).splitlines()[0]}")
            continue
        kept = f"symbolic sizes: {', '.join(sorted(limits))}"
        found.notes["dynamic"] = "\n".join([kept, *reasons])
        return found
    found = _static(fn, args, device)
    found.notes["dynamic"] = "\n".join(["no symbolic sizes", *reasons])
    return found


def captured_from(
    fn: Callable[..., Any], args: tuple[Any, ...], closed: Any, shapes: Any, device: str = ""
) -> Captured:
    """Imports the jaxpr of a function, for a device; by default that of the arrays."""
    notes: dict[str, str] = {}
    names = argument_names(fn, args)
    big = {id(c): c for c in constants_of(closed) if is_big(c)}
    held = [*big.values(), *jax.tree_util.tree_leaves(args)]
    device = device or device_of(held)
    shared = Shared(DimReader(), on_gpu=device != "cpu")
    importer = Importer(shared)
    taken = set(names)
    bound_names = _constant_names(fn, big, taken)
    leaves = [Leaf(n, a) for n, a in zip(names, closed.in_avals, strict=True)]
    held = [Leaf(n, jax.typeof(c)) for n, c in zip(bound_names, big.values(), strict=True)]
    bound = [_param(importer, leaf) for leaf in held]
    inputs = [_param(importer, leaf) for leaf in leaves]
    importer.big = dict(zip(big, bound, strict=True))
    results = importer.closed(closed, inputs)
    func = importer.b.func(_function_name(fn), [*bound, *inputs], _after_effects(importer, results))
    if shared.constraints:
        head = "followed by the passes propagate, reshard and spmd; left out on one device"
        notes["sharding constraints"] = "\n".join([head, *shared.constraints])
    tree = jax.tree_util.tree_structure(args)
    return Captured(
        func=func,
        make_text=lambda: _printed(closed),
        bound=[to_words(c if isinstance(c, jax.Array) else np.asarray(c)) for c in big.values()],
        flatten=Flatten(fn, leaves, tree, device),
        unflatten=Unflatten(jax.tree_util.tree_structure(shapes), closed.out_avals),
        original=fn,
        args=args,
        notes=notes,
        device=device,
        arguments=tuple(names),
        weights=tuple(bound_names),
    )


def _after_effects(importer: Importer, results: Sequence[Node]) -> list[Node]:
    """Returns the results, one of which is computed from the token, so that all effects run.

    Without results, the token is returned as the only one; without effects, nothing changes.
    """
    tokens = importer.left
    if not tokens or not results:
        return [*results, *tokens]
    place = min(range(len(results)), key=lambda i: results[i].tensor.rank)
    x, token = results[place], tokens[0]
    if x.shape:
        token = importer.b.broadcast(token, axes=(), type=x.tensor.with_dtype(BOOL))
    waiting = importer.b.select(token, constant(0, x.dtype), x)  # a token is always false
    return [*results[:place], waiting, *results[place + 1 :]]


def _param(importer: Importer, leaf: Leaf) -> Node:
    try:
        return param(leaf.name, importer.type_of(leaf.aval))
    except NoElementType as error:
        raise error.at(f"argument {leaf.name}") from error


def _printed(closed: Any) -> str:
    try:
        return str(closed)
    except Exception as error:  # such as a primitive without a parameter that JAX prints
        return f"JAX cannot print this program: {type(error).__name__}: {error}"


def _function_name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = str(getattr(fn, "__name__", "") or type(fn).__name__)
    return unique_name(name.strip("<>"), set(), {})


# ---- names


def argument_names(fn: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Returns a name for every array, from signature and pytree path: `params.attn.wq`."""
    firsts = parameter_names(fn, len(args))
    taken: set[str] = set()
    counts: dict[str, int] = {}
    out: list[str] = []
    for path, _ in jax.tree_util.tree_leaves_with_path(tuple(args)):
        parts = [firsts[path[0].idx], *map(_key_name, path[1:])]
        out.append(unique_name(".".join(parts), taken, counts))
    return out


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _constant_names(fn: Callable[..., Any], big: dict[int, Any], taken: set[str]) -> list[str]:
    """Returns names of closed-over arrays: those of their variables, if any."""
    known: dict[int, str] = {}
    inner = inspect.unwrap(fn) if callable(fn) else fn
    try:
        held = inspect.getclosurevars(inner)
        scopes = {**held.globals, **held.nonlocals}
    except (TypeError, ValueError):
        scopes = {}
    for name, value in scopes.items():
        if isinstance(value, jax.Array | np.ndarray | dict | list | tuple):
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                known[id(leaf)] = ".".join([name, *map(_key_name, path)])
    counts: dict[str, int] = {}
    return [unique_name(known.get(key, "const"), taken, counts) for key in big]


# ---- symbolic sizes


def _symbolic(
    fn: Callable[..., Any], args: tuple[Any, ...], names: Sequence[str]
) -> tuple[tuple[Any, ...], set[str]]:
    """Returns the arguments as types, with symbols for leading sizes of array arguments.

    Arrays inside containers are assumed to be weights. An argument whose leading sizes equal those
    of the first array argument shares its symbols.
    """
    symbols = dict(zip(names, export.symbolic_shape(",".join(names)), strict=True))
    plain = [a for a in args if hasattr(a, "shape") and len(a.shape)]
    if not plain:
        return args, set()
    model = plain[0].shape
    used: set[str] = set()
    specs: list[Any] = []
    for arg in args:
        if not hasattr(arg, "shape"):
            specs.append(arg)
            continue
        shape = list(arg.shape)
        for axis, name in enumerate(names):
            has = axis < min(len(shape), len(model)) and shape[axis] == model[axis]
            if has and (axis == 0 or len(model) > 2 or plain[0].dtype.kind in "iu"):
                shape[axis] = symbols[name]
                used.add(name)
            elif axis == 0:
                break
        weak = getattr(arg, "weak_type", False)
        specs.append(jax.ShapeDtypeStruct(tuple(shape), arg.dtype, weak_type=weak))
    return tuple(specs), used if len(used) == len(names) else set()


# ---- in and out


class Flatten:
    """Converts user arguments to arrays. Raises TypeError for others, as a jitted function does."""

    def __init__(
        self, fn: Callable[..., Any], leaves: Sequence[Leaf], tree: Any, device: str
    ) -> None:
        self.fn = fn
        self.device = device
        self.may_move = jax.default_backend() != "cpu"
        self.leaves = leaves
        self.tree = tree
        self.settings = settings()

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        if kwargs:
            args = inspect.signature(self.fn).bind(*args, **kwargs).args
        if settings() != self.settings:
            raise TypeError(f"captured with {changed(self.settings)}")
        return self.arrays(args)

    def arrays(self, args: Sequence[Any]) -> list[Any]:
        """Returns the arrays of arguments, whatever JAX's settings are."""
        given, tree = jax.tree_util.tree_flatten(tuple(args))
        if tree != self.tree:
            names = ", ".join(leaf.name for leaf in self.leaves[:8])
            raise TypeError(
                f"the arguments have the structure {tree}, captured was {self.tree} ({names})"
            )
        sizes: dict[str, int] = {}
        return [self._leaf(leaf, x, sizes) for leaf, x in zip(self.leaves, given, strict=True)]

    def fits(self, types: Sequence[Any]) -> bool:
        """True if arguments of these types, in any structure of containers, match the capture."""
        given, tree = jax.tree_util.tree_flatten(tuple(types))
        sizes: dict[str, int] = {}
        is_same = tree == self.tree and settings() == self.settings
        return is_same and all(map(self._is_like, self.leaves, given, [sizes] * len(given)))

    def _is_like(self, leaf: Leaf, aval: Any, sizes: dict[str, int]) -> bool:
        is_same = aval.dtype == leaf.aval.dtype and aval.weak_type == leaf.aval.weak_type
        return is_same and _fits(aval.shape, leaf.aval.shape, sizes)

    def _leaf(self, leaf: Leaf, x: Any, sizes: dict[str, int]) -> Any:
        try:
            aval = jax.typeof(x) if not isinstance(x, np.ndarray) else _numpy_aval(x)
        except TypeError as error:
            raise TypeError(f"argument {leaf.name}: {error}") from error
        if not self._is_like(leaf, aval, sizes):
            raise TypeError(f"argument {leaf.name} is {leaf.text}, got {Leaf('', aval).text}")
        if isinstance(x, jax.Array):
            if self.may_move and not isinstance(x, Tracer) and device_of([x]) != self.device:
                raise TypeError(f"argument {leaf.name} was on {self.device}, got {device_of([x])}")
            return to_words(x)
        return to_words(np.asarray(x, dtype=leaf.aval.dtype))


def _numpy_aval(x: np.ndarray) -> Any:
    return ShapedArray(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _fits(shape: Sequence[Any], expected: Sequence[Any], sizes: dict[str, int]) -> bool:
    """True if a shape matches the captured one.

    A size symbol takes the first size that it stands for, stored in `sizes`; it must be the same
    everywhere. Sizes that are sums are checked later.
    """
    if len(shape) != len(expected):
        return False
    for size, want in zip(shape, expected, strict=True):
        if isinstance(want, int):
            if size != want:
                return False
        elif sizes.setdefault(str(want), size) != size or size < 1:
            return False
    return True


class Unflatten:
    """Converts the result arrays of a program to the user's nested return value.

    Drops the token after the results that orders side effects.
    """

    def __init__(self, tree: Any, avals: Sequence[Any]) -> None:
        self.tree = tree
        self.avals = tuple(avals)

    def __call__(self, arrays: Sequence[Any]) -> Any:
        given = zip(arrays[: len(self.avals)], self.avals, strict=True)
        leaves = [_as_held(x, a) for x, a in given]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _as_held(array: Any, aval: Any) -> Any:
    """Converts a result array to JAX's element type, weakly typed if the capture's result was."""
    if aval.dtype == jax.dtypes.float0:  # the tangent of an integer; has no JAX array
        return np.zeros(aval.shape, aval.dtype)
    array = from_words(array, aval.dtype)
    return weakly_typed(array) if aval.weak_type else array
