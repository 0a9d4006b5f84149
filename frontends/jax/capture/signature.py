"""The form of a call of a JAX function: separates its arrays from its fixed arguments.

Static arguments are part of the program, and so is the choice of positional or named arguments. A
form records both. It makes a function of the arrays alone, and each such function is captured.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.frameworks.jax_private import jit_info


def statics_of(fn: Callable[..., Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the static arguments of a `jax.jit` function, by position and name; else none."""
    info = jit_info(fn)
    return tuple(getattr(info, "static_argnums", ())), tuple(getattr(info, "static_argnames", ()))


@dataclass(frozen=True)
class Form:
    """The form of a call without its arrays. Calls with equal forms call the same function.

    Attributes:
        count: number of positional arguments.
        fixed: static ones among them: position, type and value.
        named: static arguments by name: name, type and value.
        names: names of other arguments passed by name.
    """

    count: int = 0
    fixed: tuple[tuple[int, type, Any], ...] = ()
    named: tuple[tuple[str, type, Any], ...] = ()
    names: tuple[str, ...] = ()

    def change(self, before: Form) -> str:
        """Returns how this form differs from an earlier one; "" if they are equal."""
        found: list[str] = []
        if self.count != before.count:
            found.append(f"{self.count} positional arguments, before {before.count}")
        for was, now in ((before.fixed, self.fixed), (before.named, self.named)):
            old, new = ({key: value for key, _, value in fixed} for fixed in (was, now))
            changed = {key for key, *_ in {*was} ^ {*now}}
            for key in sorted(changed, key=str):
                texts = (repr(held[key]) if key in held else "absent" for held in (old, new))
                found.append("static argument {!r} was {}, is {}".format(key, *texts))
        if self.names != before.names:
            names, known = (", ".join(n) or "none" for n in (self.names, before.names))
            found.append(f"arguments by name: {names}; before: {known}")
        return "; ".join(found)

    def of_arrays(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn` as a function of the arrays: the positional ones, then those by name."""
        if not (self.fixed or self.named or self.names):
            return fn
        fixed = {place: value for place, _, value in self.fixed}
        named = {name: value for name, _, value in self.named}

        def call(*arrays: Any) -> Any:
            left = iter(arrays)
            args = [fixed[i] if i in fixed else next(left) for i in range(self.count)]
            return fn(*args, **named, **dict(zip(self.names, left, strict=True)))

        functools.update_wrapper(call, fn, updated=())  # not the attributes of `jax.jit`
        call.__signature__ = inspect.Signature(self._parameters(fn, set(fixed)))  # pyright: ignore[reportFunctionMemberAccess]
        return call

    def donated(self, fn: Callable[..., Any]) -> tuple[int, ...]:
        """Returns which of the arrays `fn` may overwrite, by the options that `jax.jit` got."""
        info = jit_info(fn)
        places, names = getattr(info, "donate_argnums", ()), getattr(info, "donate_argnames", ())
        if self == PLAIN:
            return tuple(places)
        given = [i for i in range(self.count) if i not in {place for place, _, _ in self.fixed}]
        known = parameter_names(fn, self.count)
        asked = [i in places or known[i] in names for i in given] + [n in names for n in self.names]
        return tuple(number for number, is_asked in enumerate(asked) if is_asked)

    def _parameters(self, fn: Callable[..., Any], fixed: set[int]) -> list[inspect.Parameter]:
        """Returns the parameters of the arrays, named as in `fn`."""
        known = parameter_names(fn, self.count)
        names = [*(n for i, n in enumerate(known) if i not in fixed), *self.names]
        unique = [n if n.isidentifier() else n.replace(".", "_") for n in names]
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in unique]


PLAIN = Form()


def split(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Form, tuple[Any, ...]]:
    """Returns the form of a call, and its arrays in the order of `of_arrays`.

    Arguments by name are moved to their positions if possible. Raises TypeError for arguments that
    `fn` does not take, ValueError for a static argument that cannot be hashed.
    """
    places, static_names = statics_of(fn)
    if not (places or static_names or kwargs):
        return PLAIN, tuple(args)
    if kwargs:
        args, kwargs = _in_places(fn, args, kwargs)
    count = len(args)
    fixed = {i % count for i in places if -count <= i < count}
    form = Form(
        count,
        tuple((i, type(args[i]), args[i]) for i in sorted(fixed)),
        tuple((n, type(v), v) for n, v in sorted(kwargs.items()) if n in static_names),
        tuple(n for n in sorted(kwargs) if n not in static_names),
    )
    try:
        hash(form)
    except TypeError as error:
        raise ValueError(f"a static argument has to be hashable: {error}") from error
    arrays = [a for i, a in enumerate(args) if i not in fixed]
    return form, (*arrays, *(kwargs[n] for n in form.names))


def _in_places(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # no signature
        return args, kwargs
    given = signature.bind(*args, **kwargs)
    return given.args, given.kwargs


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of the first `count` positional arguments."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    out: list[str] = []
    for i in range(count):
        at = parameters[min(i, len(parameters) - 1)] if parameters else None
        if at is None:
            out.append(f"arg{i}")
        elif at.kind is at.VAR_POSITIONAL:
            out.append(f"{at.name}.{i - parameters.index(at)}")
        else:
            out.append(at.name)
    return out
