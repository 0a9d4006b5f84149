"""Finds rewrite rules by name: in a Python file, in a module, or in the module of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, cast

import stack.plugins as plugins
from stack.errors import UsageError, unknown_name
from stack.imports import import_named
from stack.rewrite.engine import Rule

GROUP = "stack.passes"


def rules_named(spec: str) -> list[Rule]:
    """Returns the rules that a name means.

    `file.py:rule`, `pkg.mod:rule` and `PASS:rule` name one rule, by its variable or by its own
    name; without `:rule`, all that are in the module, imported ones too.

    Raises UsageError with the rules that there are.
    """
    left, _, wanted = spec.rpartition(":") if ":" in spec else (spec, "", "")
    module = _module(left)
    known = dict(_rules(vars(module)))
    if not known:
        raise UsageError(
            f"{left} has no rewrite rules: a rule is a function under @on(...), see"
            " `stackc new pass mine`; what a pass does without rules, `stackc opt --check` checks"
        )
    if not wanted:
        return list(dict.fromkeys(known.values()))
    if wanted not in known:
        raise unknown_name(f"{left} has no rewrite rule", wanted, known)
    return [known[wanted]]


def _module(name: str) -> ModuleType:
    """Returns the module of a pass, or the file or module of that name."""
    if name in plugins.names(GROUP):
        return import_named(plugins.load(GROUP, name).__module__)
    return import_named(name)


def _rules(values: dict[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yields the rules among the values of a module and in its tuples and lists, by the names of
    variables and by their own.
    """
    for variable, value in values.items():
        several = isinstance(value, tuple | list)
        for rule in cast("Sequence[Any]", value) if several else (value,):
            if _is_rule(rule):
                yield rule.name, rule
                if not several:
                    yield variable, rule


def _is_rule(value: object) -> bool:
    """True if an object has the parts of a `Rule`; classes have them too, but are none."""
    parts = ("name", "roots", "apply")
    return not isinstance(value, type) and all(hasattr(value, part) for part in parts)
