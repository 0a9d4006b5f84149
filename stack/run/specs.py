"""Parses backends with options from the command line: `triton{tune=true}`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import stack.plugins as plugins
from stack.errors import UsageError, unknown_name
from stack.run.options import check_options

_SPEC = re.compile(r"(?P<name>[\w-]+)(?:\{(?P<options>[^}]*)\})?")


@dataclass(frozen=True)
class BackendSpec:
    """A backend with options: `inductor{mode=max-autotune-no-cudagraphs}`. `label` is the text."""

    label: str
    backend: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def parse_backends(text: str) -> list[BackendSpec]:
    """Parses `inductor,xla,tvm{seconds=30}`. Raises UsageError with the known names."""
    known = plugins.names("stack.backends")
    specs: list[BackendSpec] = []
    for part in re.split(r",(?![^{]*\})", text):
        spec = part.strip()
        if not spec:
            continue
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise UsageError(
                f"{spec!r} is no backend; write tvm or tvm{{seconds=30, trials=64}}; there are:"
                f" {', '.join(sorted(known))}"
            )
        if match["name"] not in known:
            raise unknown_name("no backend", match["name"], known)
        options: dict[str, Any] = {}
        for item in filter(None, (i.strip() for i in (match["options"] or "").split(","))):
            key, equals, value = item.partition("=")
            if not equals:
                raise UsageError(f"{spec!r}: an option is written key=value, found {item!r}")
            options[key.strip()] = _value(value.strip())
        check_options(plugins.load("stack.backends", match["name"]), options)
        specs.append(BackendSpec(spec, match["name"], options))
    return specs


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
