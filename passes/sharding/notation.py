"""Parse shardings that a user writes: `x: dp, -, tp`.

There is one entry for each dim: an axis, `-` for none, `?` to leave it to propagation, or the
syntax of types, `{dp, tp:(1)2, ?}p1`. Dims that are left out are whole, as in JAX. `w*: tp` applies
to all values of such names; `return 0: dp` applies to a result.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from stack.errors import RuleError, StackError, UsageError, unknown_name
from stack.ir.func import Func
from stack.ir.lexer import Cursor
from stack.ir.node import Block, Node
from stack.ir.types import TensorType
from stack.mesh.meshes import Mesh
from stack.mesh.parser import ShardingParser
from stack.mesh.sharding import WHOLE, DimSharding, Sharding

_ENTRY = re.compile(r"\s*(\{[^{}]*\}(?:\s*p\d+)?|[^,{}]+?)\s*(?:,|$)")
_RESULT = re.compile(r"return(?:\s+(\d+))?")


def annotated(func: Func, mesh: Mesh, texts: tuple[str, ...]) -> Func:
    """Returns the function with shardings for the values that the texts name.

    Raises UsageError for a text that cannot be read or names nothing, RuleError if a value cannot
    have the sharding.
    """
    placer = _Placer(func, mesh)
    for text in texts:
        name, colon, entries = text.partition(":")
        if not colon:
            raise UsageError(f"a sharding is written as 'x: dp, -', not {text!r}")
        placer.place(name.strip().lstrip("%"), entries, text)
    return placer.func()


class _Placer:
    def __init__(self, func: Func, mesh: Mesh) -> None:
        self.old, self.mesh = func, mesh
        self.names = {str(p.attrs["name"]): p for p in func.params}
        self.names.update((name, node) for node, name in func.body.names.items())
        self.placed: dict[Node, TensorType] = {}
        self.results: dict[int, TensorType] = {}
        self.told: dict[str, tuple[str, Sharding]] = {}

    def place(self, name: str, entries: str, text: str) -> None:
        """Gives all values or results whose names match `name` the sharding in `entries`.

        Raises UsageError, which quotes `text`, if there are none.
        """
        result = _RESULT.fullmatch(name)
        if result is not None and name not in self.names:
            count = len(self.old.results)
            chosen = range(count) if result[1] is None else [int(result[1])]
            for index in chosen:
                if index >= count:
                    raise UsageError(f"{text!r}: @{self.old.name} has {count} result(s)")
                node = self.old.results[index]
                what = self._what(f"result {index}", node)
                self.results[index] = self._type(node.tensor, what, entries, text)
            return
        found = {known: n for known, n in self.names.items() if fnmatchcase(known, name)}
        if not found:
            raise unknown_name(f"{text!r}: @{self.old.name} has no value", name, self.names)
        for known, node in found.items():
            what = self._what(f"%{known}", node)
            self.placed[node] = self._type(node.tensor, what, entries, text)

    def _what(self, name: str, node: Node) -> str:
        """Describes a value for messages: its name and its source lines."""
        lines = ", ".join(self.old.body.locs.get(node, ()))
        return f"{name} ({lines})" if lines else name

    def _type(self, type_: TensorType, what: str, entries: str, text: str) -> TensorType:
        dims = [self._dim(entry, what, text) for entry in _entries(entries, text)]
        if len(dims) > type_.rank:
            raise UsageError(f"{text!r} has {len(dims)} entries for {what} of type {type_}")
        dims += [WHOLE] * (type_.rank - len(dims))
        sharding = Sharding(self.mesh, tuple(dims))
        try:
            sharding.check(type_.shape)
        except RuleError as error:
            raise UsageError(f"{text!r}: {what}: {error}") from error
        before, other = self.told.setdefault(what, (text, sharding))
        if other != sharding:
            raise UsageError(f"{what} has two shardings, {before!r} and {text!r}: keep one")
        return type_.with_sharding(sharding)

    def _dim(self, entry: str, what: str, text: str) -> DimSharding:
        if entry == "-":
            return WHOLE
        cursor = Cursor(entry if entry.startswith("{") else f"{{{entry}}}")
        try:
            axes, is_open, priority, overlap = ShardingParser(cursor).dim_sharding()
            if cursor.next.kind != "end":
                cursor.fail(f"expected the end, found {cursor.next.text!r}")
            if overlap is not None:
                cursor.fail(f"overlapping parts {overlap} are planned, and cannot be given")
            found = tuple(self.mesh.axis(axis) for axis, _ in axes)
        except StackError as error:
            raise UsageError(f"{text!r}: {what}: {entry!r}: {error}") from error
        return DimSharding(found, is_open, priority)

    def func(self) -> Func:
        """Returns the function with all these shardings."""
        done: dict[Node, Node] = {}
        block = self.old.body
        for node in (*block.params, *block.nodes):
            args = [done[a] for a in node.args]
            done[node] = Node(
                node.op, args, node.attrs, self.placed.get(node, node.type), node.blocks
            )
        results = [done[r] for r in block.results]
        for index, type_ in self.results.items():
            results[index] = Node("reshard", (results[index],), {}, type_)
        names = {done[n]: name for n, name in block.names.items()}
        locs = {done[n]: lines for n, lines in block.locs.items()}
        body = Block([done[p] for p in block.params], results, names, locs)
        return Func(self.old.name, body, self.old.level)


def _entries(text: str, whole: str) -> list[str]:
    found: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _ENTRY.match(text, at)
        if match is None:
            raise UsageError(f"{whole!r}: expected an axis, '-', '?' or '{{...}}' for each dim")
        found.append(match[1])
        at = match.end()
    return found
