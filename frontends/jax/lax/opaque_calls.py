"""Opaque primitives: described in the IR as text, and called when the program runs."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from stack.errors import StackError, UsageError
from stack.frameworks import jax_private as private
from stack.frontends.arithmetic.complex_pairs import PART
from stack.frontends.jax.jaxpr.element_words import from_words, to_words
from stack.frontends.jax.lax.lowering import jax_dtype
from stack.ir.types import BOOL, DType

_MARK = "jax"
_MAX_ARRAY = 256

# Primitives and parameters that have no text form, by digest; kept until the process ends.
_LIVE: dict[str, tuple[Any, dict[str, Any]]] = {}


class _NoText(Exception):
    pass


@cache
def primitives() -> dict[str, Any]:
    """Returns every primitive that JAX can run, by name."""
    return private.primitives()


@cache
def _records() -> dict[str, Callable[..., Any]]:
    """Returns the parameter types that are written as their fields. Only these are constructed."""
    found: dict[str, Callable[..., Any]] = {}
    for name in ("GatherDimensionNumbers", "ScatterDimensionNumbers", "ConvDimensionNumbers",
                 "GatherScatterMode", "RoundingMethod", "RandomAlgorithm", "Precision",
                 "RaggedDotDimensionNumbers", "FftType"):  # fmt: skip
        kind = getattr(jax.lax, name, None) or private.parameter_type(name)
        if kind is not None:
            found[name] = kind
    return found


# ---- to plain values


def describe(primitive: Any, params: dict[str, Any], dtypes: Sequence[DType]) -> tuple[Any, ...]:
    """Returns the `call` attribute: operand types, and parameters as plain values or a digest."""
    held = tuple(dtypes)
    try:
        if primitives().get(primitive.name) is not primitive:
            raise _NoText(primitive.name)  # not a primitive of JAX's own
        pairs = tuple((name, _plain(value)) for name, value in sorted(params.items()))
        return (_MARK, held, "params", *pairs)
    except _NoText:
        shown = f"{primitive.name}|{sorted((k, str(v)) for k, v in params.items())}"
        identities = (id(primitive), *sorted((k, id(v)) for k, v in params.items()))
        digest = hashlib.sha256(f"{shown}|{identities}".encode()).hexdigest()[:32]
        _LIVE[digest] = primitive, dict(params)
        return (_MARK, held, "live", digest)


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, bool | int | float | str) and not _is_enum(value)):
        return value
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, np.dtype):
        return ("dtype", value.name)
    name = type(value).__name__
    held: Any = value
    if name in _records():
        if _is_enum(value):
            return ("enum", name, held.name)
        fields = getattr(value, "_fields", None) or tuple(held.__dataclass_fields__)
        return ("record", name, tuple(_plain(getattr(value, f)) for f in fields))
    if type(value) in (tuple, list):
        return ("list", *map(_plain, held))
    if isinstance(value, np.floating):
        return ("number", value.dtype.name, float(value))
    if isinstance(value, np.ndarray) and value.size <= _MAX_ARRAY and value.dtype.kind in "iufb":
        flat = tuple(value.reshape(-1).tolist())
        return ("array", value.dtype.name, tuple(value.shape), flat)
    raise _NoText(type(value).__name__)


def _is_enum(value: Any) -> bool:
    return isinstance(value, enum.Enum)


# ---- and back


def _restore(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    kind, *rest = value
    if kind == "dtype":
        return np.dtype(jax.numpy.bfloat16 if rest[0] == "bfloat16" else rest[0])
    if kind == "enum":
        return getattr(_record(rest[0]), rest[1])
    if kind == "record":
        return _record(rest[0])(*map(_restore, rest[1]))
    if kind == "list":
        return tuple(map(_restore, rest))
    if kind == "number":
        return np.dtype(rest[0]).type(rest[1])
    if kind == "array":
        return np.asarray(rest[2], dtype=rest[0]).reshape(rest[1])
    raise UsageError(f"an opaque call has a parameter of unknown kind {kind!r}")


def _record(name: str) -> Any:
    if name not in _records():
        raise UsageError(f"an opaque call has a parameter of unknown type {name!r}")
    return _records()[name]


def operand_dtypes(call: Any, count: int) -> tuple[DType, ...]:
    """Returns the element types of `count` operands, complex ones as words.

    Operands beyond those of the call are tokens. The types are needed because storage arrays do not
    distinguish bf16 from u16.
    """
    if not isinstance(call, tuple) or len(call) < 3 or call[0] != _MARK:
        raise UsageError(f"the opaque call does not belong to this frontend: {call!r}")
    held: tuple[DType, ...] = call[1]
    return (*(PART.get(d, d) for d in held), *[BOOL] * (count - len(held)))


def bind(target: str, call: Any, args: Sequence[Any]) -> list[Any]:
    """Run the primitive of an `opaque` node of this frontend on JAX arrays; also under a trace."""
    name = target.removeprefix("jax:")
    mark, dtypes, kind, *rest = call
    if mark != _MARK or kind not in ("params", "live"):
        raise UsageError(f"the opaque call {target} does not belong to this frontend: {call!r}")
    if kind == "live":
        if rest[0] not in _LIVE:
            raise StackError(
                f"{target} was captured with parameters that have no text form (functions or"
                " jaxprs); they exist only in the process that captured the program: capture it"
                " again here"
            )
        primitive, params = _LIVE[rest[0]]
    elif name not in primitives():
        raise UsageError(f"this JAX has no primitive {name!r}")
    else:
        primitive, params = primitives()[name], {key: _restore(value) for key, value in rest}
    # further operands are tokens, which only order effects
    given, tokens = args[: len(dtypes)], args[len(dtypes) :]
    held = [from_words(a, jax_dtype(d)) for a, d in zip(given, dtypes, strict=True)]
    out = primitive.bind(*held, **primitive.get_bind_params(params))
    return [*(to_words(r) for r in (out if primitive.multiple_results else [out])), *tokens]
