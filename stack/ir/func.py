"""Functions: a named block, with its text, its values on arrays, and its sizes."""

from __future__ import annotations

import html
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from stack.ir.dim import Symbol
from stack.ir.interpreter import interpret
from stack.ir.node import Block, Interned, Node, legal_name
from stack.ir.printer import print_function
from stack.ir.sizes import sizes_of, substitute_sizes

_FUNCS: weakref.WeakValueDictionary[tuple[Any, ...], Func] = weakref.WeakValueDictionary()


class Func(Interned):
    """A named closed block at one level ("tensor", "tile" or "loop")."""

    __slots__ = (
        "__dict__", "__weakref__", "body", "level", "name", "params", "results",
    )  # fmt: skip

    name: str
    level: str
    body: Block
    params: tuple[Node, ...]
    results: tuple[Node, ...]

    def __new__(cls, name: str, body: Block, level: str = "tensor") -> Func:
        name = legal_name(name)
        key = (name, level, body)
        found = _FUNCS.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.name = name
        self.level = level
        self.body = body
        self.params, self.results = body.params, body.results
        return _FUNCS.setdefault(key, self)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the body, operands first."""
        return self.body.nodes

    def __str__(self) -> str:
        return print_function(self.name, self.body, self.level)

    def __repr__(self) -> str:
        return f"<Func {self.name} at {self.level}: {len(self.nodes)} nodes>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def interpret(self, *arrays: Any) -> Any:
        """Runs in the reference interpreter on NumPy arrays, checked against the parameter types.

        bf16 values are float32 arrays that hold bf16 values (ml_dtypes arrays are accepted too).
        Size symbols are bound from the shapes of the arguments. Returns one array, or a tuple.

        Raises:
            TypeError: wrong number of arguments, or an element type that differs from the
                parameter's.
            ValueError: a shape that differs from the parameter's.
        """
        return interpret(self.name, self.body, arrays)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """Size symbols that the function is generic over, by name."""
        return self.body.symbols

    @property
    def meshes(self) -> tuple[Any, ...]:
        """Meshes that occur in the types of the function, sorted by text."""
        return self.body.meshes

    def bind(self, values: Mapping[str, int]) -> Func:
        """The same function with size symbols replaced by numbers."""
        return Func(self.name, substitute_sizes(self.body, values), self.level)

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The values of the size symbols, from the shapes of the arguments; checks every shape.

        Raises TypeError or ValueError, which name the argument.
        """
        return sizes_of(self.name, self.params, shapes)
