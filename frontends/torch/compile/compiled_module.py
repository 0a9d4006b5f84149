"""A compiled module as a module, with the parameters, state and modes of the original."""

from __future__ import annotations

from typing import Any

import torch

from stack.calls.compiled_callable import Compiled

_OWN = frozenset(vars(Compiled(None, {})))  # attributes of the compiled object itself


class CompiledModule(Compiled, torch.nn.Module):
    """The result of `stack.compile` for a module; can replace the original module.

    It has no state of its own: attributes and methods are those of the original, `fn`, except those
    of `Compiled` and calls. Methods that return the module return this object, as in `compiled =
    compiled.to("cpu").eval()`. Dynamo guards what `eval()`, `train()` and `to()` change, so the
    next call is captured again.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.fn, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.fn, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(Compiled), *_OWN, *dir(self.fn)})


def _of_original(name: str) -> property:
    return property(lambda self: getattr(self.fn, name))


def _giving_itself(name: str) -> Any:
    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.fn, name)(*args, **kwargs)
        return self if result is self.fn else result

    return method


def _delegate() -> None:
    """Make the methods of modules call those of the original, which may override them."""
    for name in {*dir(torch.nn.Module)} - {*dir(Compiled), "forward"}:
        returns = getattr(getattr(torch.nn.Module, name), "__annotations__", {}).get("return")
        if not name.startswith("__"):
            is_itself = "Self" in str(returns) or name == "to"
            made = _giving_itself if is_itself else _of_original
            setattr(CompiledModule, name, made(name))


_delegate()
