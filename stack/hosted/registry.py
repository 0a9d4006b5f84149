"""Declared operators by name; families that are not loaded yet are found by entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import stack.plugins as plugins
from stack.errors import StackError, UsageError, unknown_name
from stack.hosted.declaration import NUMPY, Kernel, Op

GROUP = "stack.ops"
_DECLARED: dict[str, Op] = {}


def op(
    name: str,
    *,
    rule: str,
    language: str = NUMPY,
    reference: Callable[..., Any] | None = None,
    kernels: tuple[Kernel, ...] = (),
    gradient: Op | None = None,
    autocast: str = "",
    packs: Callable[..., Any] | None = None,
    values: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Declares an operator whose decomposition is the decorated function.

        @stack.op("acme.clamp", rule="... a -> ... a", kernels=(stack.Kernel("cpu", by_hand),))
        def clamp(np, x, *, top: float = 6.0):
            '''x between 0 and a bound.'''
            return np.minimum(np.maximum(x, 0.0), top)

    The function takes NumPy's API, arrays by position, and attributes by name, each with a type
    (bool, int, float or str) and a default. Its docstring becomes the operator's. The result is
    called as `clamp(x, top=2.0)` on NumPy, torch or JAX arrays, and is listed by `stackc ops
    acme.clamp`.

    Args:
        name: "family.operator".
        rule: axes of operands and results, `"... k, n k -> ... n"`: the same name is the same size,
            `...` any leading axes, `d!` an axis that is needed whole. Operands are floats unless a
            type follows their axes: `n: i32`, one type, `n: int`, integers, `n: any`. Integers may
            have limits: `n: int < v`, see `stack.hosted.element_types`.
        language: "torch" or "jax" if the decomposition is written for these.
        reference: a readable version of the algorithm, on NumPy arrays.
        kernels: hand-written kernels, best first. Operands that none supports are decomposed. See
            `stack.Kernel`.
        gradient: an operator `(*operands, *results, *gradients) -> gradients of float operands`;
            default: the derivative of the decomposition.
        autocast: under torch.autocast floats become "f32", or its "low" type.
        packs: for a matmul with packed weights: the function that packs them.
        values: raises RuleError for invalid integers that limits cannot express, such as which
            pages of a table are used.

    Raises:
        UsageError: the name is taken, the rule has another number of arrays, or an attribute has no
            type or default.
    """

    def declare(decomposition: Callable[..., Any]) -> Op:
        made = Op(
            name,
            rule,
            decomposition,
            language,
            reference,
            kernels,
            gradient,
            autocast,
            packs,
            values,
        )
        return register(made)

    return declare


def register(made: Op) -> Op:
    """Registers an operator, and defines it in the frameworks that are already loaded.

    Raises UsageError if the name is taken.
    """
    held = _DECLARED.get(made.name)
    if held is not None and _place(held) != _place(made):
        raise UsageError(f"operator {made.name!r} is declared already, in {_place(held)}")
    _ = made.attributes  # raises errors of a wrong signature here
    _DECLARED[made.name] = made
    for framework in plugins.names("stack.frontends"):
        if hasattr(sys.modules.get(framework), "__version__"):
            made.on(framework)
    return made


def enter(framework: str) -> None:
    """Defines in a framework every operator that was declared before the framework was loaded.

    Called before a trace, since defining an operator during a trace ends it.
    """
    for made in list(_DECLARED.values()):
        made.on(framework)


def _place(made: Op) -> str:
    code = made.decomposition.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def find(name: str) -> Op:
    """Returns a declared operator. Raises UsageError with the known names and how to add a file."""
    plugins.load_files()
    family = name.partition(".")[0]
    if name not in _DECLARED and family in plugins.names(GROUP):
        plugins.load(GROUP, family)
    if name not in _DECLARED:
        raise UsageError(
            f"{unknown_name('no operator', name, declared())}; to load the file that"
            " declares it, add --plugin FILE"
        )
    return _DECLARED[name]


def declared() -> list[str]:
    """Returns the names of all operators of every family that can be loaded."""
    plugins.load_files()
    for family in plugins.names(GROUP):
        try:
            plugins.load(GROUP, family)
        except (ImportError, StackError):
            continue  # `stackc env` names it
    return sorted(_DECLARED)
