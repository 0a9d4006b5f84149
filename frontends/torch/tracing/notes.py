"""Dynamo's notes on a graph: guards, graph breaks, decompiled bytecode."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from typing import Any

from stack.releases import install_hint


class Notes(dict[str, Any]):
    """Maps titles to texts. A text may be a function, which is called on the first read."""

    def __getitem__(self, title: str) -> str:
        value = super().__getitem__(title)
        if callable(value):
            value = str(value())
            self[title] = value
        return value

    def get(self, title: str, default: Any = None) -> Any:
        return self[title] if title in self else default  # noqa: SIM401 this is `get`

    def items(self) -> ItemsView[str, str]:
        return ItemsView(self)

    def values(self) -> ValuesView[str]:
        return ValuesView(self)

    def copy(self) -> Notes:
        return Notes(dict.items(self))

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


def breaks_of(fn: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Returns the reasons for Dynamo's graph breaks, each with its source line."""
    import torch

    from stack.frameworks.torch_private import DYNAMO_LOG, explain
    from stack.frontends.torch.importer.errors import place_of
    from stack.frontends.torch.tracing.dynamo import quiet

    with quiet(DYNAMO_LOG):
        found = explain(fn, args)
    torch.compiler.reset()
    told: dict[str, None] = {}
    for each in found.break_reasons:
        why = str(each.reason).strip().splitlines()[0]
        why = "a branch on the data of a tensor" if why.startswith("generic_jump") else why
        place = place_of(getattr(each, "user_stack", ()))
        told[f"{place}: {why}" if place else why] = None
    return list(told)


def guards_text(guards: Any) -> str:
    """Returns one guard per line: the kind of check and the checked source."""
    lines = {f"{g.create_fn_name()} {g.name}".strip() for g in guards}
    return "\n".join(sorted(lines))


def decompiled(code: Any) -> str:
    """Decompiles Dynamo's bytecode to Python with depyf."""
    try:
        import depyf
    except ImportError:
        return f"depyf is not installed: {install_hint('torch')}"
    try:
        return str(depyf.decompile(code))
    except Exception as error:  # depyf does not know every instruction
        return f"depyf could not decompile {code.co_name}: {error}"
