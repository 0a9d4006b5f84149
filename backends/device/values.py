"""Where a value of a program is."""

from __future__ import annotations

import math

import torch

from .launch import Cells


class Value:
    """A value, the tensor that holds it while a program runs, and the cell of its address.

    `source` is "input", "output" (fresh at each call), "static" (a constant or a place in the
    arena), "made" (by its step) or "view" (of `base`, whose cell it shares).
    """

    __slots__ = ("base", "cell", "dtype", "place", "shape", "source", "tensor", "what")

    def __init__(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, source: str) -> None:
        self.what = what
        self.shape = shape
        self.dtype = dtype
        self.source = source
        self.base: Value | None = None
        self.cell = 0
        self.place: int | None = None
        self.tensor: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def root(self) -> Value:
        """What a view is a view of, in the end."""
        value = self
        while value.source == "view" and value.base is not None:
            value = value.base
        return value

    def put(self, tensor: torch.Tensor, cells: Cells) -> None:
        """Let a tensor hold it."""
        self.tensor = tensor
        cells[self.cell] = tensor.data_ptr()

    def get(self) -> torch.Tensor:
        """The tensor; a view of what was made after the call began is taken here."""
        if self.tensor is None:
            root = self.root
            assert root.tensor is not None, f"{self.what} is read before it is there"
            self.tensor = root.tensor.view(self.shape)
        return self.tensor
