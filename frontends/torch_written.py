"""Functions of torch that are written out before autograd sees them, in place of its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from stack.frontends import torch_attention, torch_bags, torch_encoder, torch_recurrent

WRITTEN = (
    torch_attention.WRITTEN | torch_bags.WRITTEN | torch_encoder.WRITTEN | torch_recurrent.WRITTEN
)


class WrittenOut(TorchFunctionMode):
    """While it is entered, calls of the functions in `WRITTEN` are written out."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        call: Callable[..., Any] = WRITTEN.get(func) or func
        return call(*args, **(kwargs or {}))
