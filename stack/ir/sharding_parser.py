"""Parses meshes and shardings."""

from __future__ import annotations

from stack.errors import RuleError
from stack.ir.lexer import Cursor
from stack.ir.mesh import Axes, Mesh, MeshAxis
from stack.ir.overlap import Overlap
from stack.ir.sharding import PARTIAL_KINDS, DimSharding, Sharding

# a dim's braces before the mesh's name is known: axis names with positions, open, priority, overlap
Held = tuple[list[tuple[str, int]], bool, int | None, Overlap | None]


class ShardingParser(Cursor):
    """Parses the sharding syntax of types: `{dp, ?}p1` after a size, `@m + ...` at the end."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.meshes: dict[str, Mesh] = {}

    def mesh(self) -> None:
        """`@m(dp=2, tp=4)` in the head of a function."""
        token = self.take()
        name = token.text[1:]
        if name in self.meshes:
            self.fail(f"the mesh {token.text} is declared twice", token.position)
        self.expect("(")
        axes: list[tuple[str, int]] = []
        while self.more(")", axes):
            axis = self.expect_kind("word", "an axis name").text
            self.expect("=")
            axes.append((axis, self.integer()))
        try:
            self.meshes[name] = Mesh(name, tuple(axes))
        except RuleError as error:
            self.fail(f"expected a mesh: {error}", token.position)

    def dim_sharding(self) -> Held:
        """`{dp, tp:(1)2, ?}p1`, or `{tp, -1:17:16}`; empty text means not split."""
        axes: list[tuple[str, int]] = []
        is_open = False
        overlap: Overlap | None = None
        if not self.accept("{"):
            return axes, False, None, None
        items: list[str] = []
        while self.more("}", items):
            if self.accept("?"):
                is_open = True
                items.append("?")
                continue
            if self.next.kind == "number":
                overlap = self._overlap()
                items.append(str(overlap))
                continue
            axes.append(self._axis())
            items.append(axes[-1][0])
        token = self.next
        if token.kind == "word" and token.text[0] == "p" and token.text[1:].isdecimal():
            self.take()
            return axes, is_open, int(token.text[1:]), overlap
        return axes, is_open, None, overlap

    def _overlap(self) -> Overlap:
        start = self.integer()
        self.expect(":")
        stop = self.integer()
        self.expect(":")
        return Overlap(start, stop, self.integer())

    def _axis(self) -> tuple[str, int]:
        token = self.expect_kind("word", "an axis of the mesh, or ?")
        text = token.text
        if self.accept(":"):
            self.expect("(")
            before = self.integer()
            self.expect(")")
            text += f":({before}){self.integer()}"
        return text, token.position

    def sharding(self, held: list[Held]) -> Sharding | None:
        """`@m + replicated(tp) + partial(sum: tp)` after the shape; None if no mesh follows."""
        token = self.next
        if token.kind != "name" or token.text[0] != "@":
            if any(axes or is_open for axes, is_open, *_ in held):
                self.fail("expected the mesh of the axes, such as @m")
            return None
        mesh = self.meshes.get(self.take().text[1:])
        if mesh is None:
            known = ", ".join(f"@{name}" for name in self.meshes) or "none"
            self.fail(f"expected a mesh ({known}), found {token.text}", token.position)
        dims = tuple(
            DimSharding(
                tuple(self._known(mesh, *axis) for axis in axes), is_open, priority, overlap
            )
            for axes, is_open, priority, overlap in held
        )
        found: dict[str, Axes] = {"replicated": (), "partial": ()}
        kind = "sum"
        while self.accept("+"):
            word = self.expect_kind("word", "replicated or partial")
            if word.text not in found:
                self.fail(f"expected replicated or partial, found {word.text!r}", word.position)
            self.expect("(")
            if word.text == "partial":
                kind = self.expect_kind("word", f"one of {', '.join(PARTIAL_KINDS)}").text
                self.expect(":")
            axes: list[MeshAxis] = []
            while self.more(")", axes):
                axes.append(self._known(mesh, *self._axis()))
            found[word.text] = tuple(axes)
        return Sharding(mesh, dims, found["replicated"], found["partial"], kind)

    def _known(self, mesh: Mesh, text: str, position: int) -> MeshAxis:
        try:
            return mesh.axis(text)
        except RuleError as error:
            self.fail(f"expected an axis: {error}", position)
