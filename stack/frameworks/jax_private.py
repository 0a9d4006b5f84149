"""Everything that we read of JAX without a public name, as functions and constants of ours.

Each says what it gives and why JAX's public API does not. If a release lacks a name, the import
of this file or the function that reads the name raises ImportError or AttributeError, unless the
docstring says otherwise.
"""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax._src import lax as _lax
from jax._src.config import trace_context, trace_context_names
from jax._src.core import physical_aval
from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings
from jax._src.random.core import _gamma_impl
from jax._src.random.prng import (
    random_bits_impl_base,
    random_fold_in_impl_base,
    random_seed_impl_base,
    random_split_impl_base,
    random_wrap,
)
from jax._src.random.threefry2x32 import _threefry2x32_lowering
from jax._src.source_info_util import Scope, raw_frame_to_frame
from jax._src.source_info_util import user_frames as _user_frames

# ---- random keys: the functions that JAX traces for its primitives, on the words of keys


def seed_words(seeds: Any, impl: Any) -> Any:
    """Returns the integers of PRNG keys made from seeds; public functions return opaque keys."""
    return random_seed_impl_base(seeds, impl=impl)


def split_words(impl: Any, words: Any, axes: int, shape: Any) -> Any:
    """Splits the PRNG keys that consist of the integers `words`; returns those of the new keys.

    `axes` is the rank of the array of keys, without the axis of each key's integers.
    """
    return random_split_impl_base(impl, words, axes, shape=shape)


def fold_words(impl: Any, words: Any, data: Any, shape: Any) -> Any:
    """Returns the integers of PRNG keys after `jax.random.fold_in` with `data`."""
    return random_fold_in_impl_base(impl, words, data, shape)


def bits_of_words(impl: Any, words: Any, axes: int, width: int, shape: Any) -> Any:
    """Returns random bits, in integers of `width` bits, from the integers of PRNG keys."""
    return random_bits_impl_base(impl, words, axes, bit_width=width, shape=shape)


def gamma_of_words(impl: Any, words: Any, alpha: Any, log_space: bool) -> Any:
    """Computes `jax.random.gamma`, which is one primitive, by a decomposition into others."""
    keys: Any = random_wrap(words, impl=impl)
    return _gamma_impl(keys, alpha, log_space=log_space, use_vmap=True)


def threefry_rounds(*words: Any) -> Any:
    """Computes JAX's Threefry generator with its rounds unrolled instead of in a loop."""
    return _threefry2x32_lowering(*words, use_rolled_loops=False)


def key_generator(dtype: Any) -> Any:
    """Returns the generator of keys by their dtype; `jax.random.key_impl` takes arrays of keys."""
    return dtype._impl


def special_function(name: str) -> Callable[..., Any] | None:
    """Returns JAX's decomposition of a special function; None if this release has none."""
    special: Any = _lax
    return getattr(special.special, f"{name}_impl", None)


# ---- primitives and abstract values


def primitives() -> dict[str, Any]:
    """Returns every primitive that JAX can run, by name; `jax.extend` lists some of them."""
    tables = (_lowerings, *_platform_specific_lowerings.values())
    return {primitive.name: primitive for table in tables for primitive in table}


def parameter_type(name: str) -> Any | None:
    """Returns the class `name` of a primitive's parameter from JAX's private modules, or None."""
    lax: Any = _lax
    modules = (lax.slicing, lax.lax, lax.convolution)
    return next((getattr(m, name) for m in modules if hasattr(m, name)), None)


def words_of_keys(aval: Any) -> Any:
    """Returns the abstract value of the integers in an array of PRNG keys."""
    return physical_aval(aval)


def weakly_typed(array: Any) -> Any:
    """Returns a JAX array of weak type, which takes the element type of the other operand."""
    lax: Any = _lax
    return lax.lax._convert_element_type(array, weak_type=True)


def size_terms(size: Any) -> list[tuple[Any, Any]] | None:
    """Returns a symbolic size of `jax.export` as a sum of products; None for a number.

    Each term is its factors with exponents, and its coefficient.
    """
    if not hasattr(size, "_sorted_terms"):
        return None
    return [(term._factors, count) for term, count in size._sorted_terms]


def jit_info(fn: Any) -> Any | None:
    """Returns the options of a `jax.jit` function; None for others. It has no public class."""
    return getattr(fn, "_jit_info", None)


# ---- settings and source lines


def trace_settings() -> tuple[Any, ...]:
    """Returns the settings that affect a trace, as `jax.jit` stores them with each trace."""
    return trace_context()


def trace_setting_names() -> tuple[str, ...]:
    """Returns the names of `trace_settings`."""
    return trace_context_names()


def scope_names(eqn: Any) -> Iterator[str]:
    """Yields the named scopes around an equation; `jax.extend` gives them as one text."""
    for item in eqn.source_info.name_stack.stack:
        if isinstance(item, Scope):
            yield item.name


def user_frames(traceback: Any) -> list[Any]:
    """Returns the frames of a traceback outside of JAX, innermost first."""
    return list(_user_frames(traceback))


def frame_of(code: Any, place: int) -> Any:
    """Returns the source span of a frame of `traceback.raw_frames`."""
    return raw_frame_to_frame(code, place)
