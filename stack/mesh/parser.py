"""Parses meshes and shardings."""

from __future__ import annotations

from collections.abc import Mapping

from stack.errors import RuleError
from stack.ir.lexer import Cursor
from stack.mesh.meshes import Axes, Mesh, MeshAxis
from stack.mesh.overlap import Overlap
from stack.mesh.sharding import PARTIAL_KINDS, DimSharding, Sharding

# a dim's braces before the mesh's name is known: axis names with positions, open, priority, overlap
Held = tuple[list[tuple[str, int]], bool, int | None, Overlap | None]
UNSPLIT: Held = ([], False, None, None)


class ShardingParser:
    """Parses the sharding syntax of types: `{dp, ?}p1` after a size, `@m + ...` at the end.

    Reads from the cursor of the text that contains the types.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.meshes: dict[str, Mesh] = {}

    def mesh(self) -> None:
        """`@m(dp=2, tp=4)` in the head of a function."""
        token = self.cursor.take()
        name = token.text[1:]
        if name in self.meshes:
            self.cursor.fail(f"the mesh {token.text} is declared twice", token.position)
        self.cursor.expect("(")
        axes: list[tuple[str, int]] = []
        while self.cursor.more(")", axes):
            axis = self.cursor.expect_kind("word", "an axis name").text
            self.cursor.expect("=")
            axes.append((axis, self.cursor.integer()))
        try:
            self.meshes[name] = Mesh(name, tuple(axes))
        except RuleError as error:
            self.cursor.fail(f"expected a mesh: {error}", token.position)

    def dim_sharding(self) -> Held:
        """`{dp, tp:(1)2, ?}p1`, or `{tp, -1:17:16}`."""
        axes: list[tuple[str, int]] = []
        is_open = False
        overlap: Overlap | None = None
        self.cursor.expect("{")
        items: list[str] = []
        while self.cursor.more("}", items):
            if self.cursor.accept("?"):
                is_open = True
                items.append("?")
                continue
            if self.cursor.next.kind == "number":
                overlap = self._overlap()
                items.append(str(overlap))
                continue
            axes.append(self._axis())
            items.append(axes[-1][0])
        token = self.cursor.next
        if token.kind == "word" and token.text[0] == "p" and token.text[1:].isdecimal():
            self.cursor.take()
            return axes, is_open, int(token.text[1:]), overlap
        return axes, is_open, None, overlap

    def _overlap(self) -> Overlap:
        start = self.cursor.integer()
        self.cursor.expect(":")
        stop = self.cursor.integer()
        self.cursor.expect(":")
        return Overlap(start, stop, self.cursor.integer())

    def _axis(self) -> tuple[str, int]:
        token = self.cursor.expect_kind("word", "an axis of the mesh, or ?")
        text = token.text
        if self.cursor.accept(":"):
            self.cursor.expect("(")
            before = self.cursor.integer()
            self.cursor.expect(")")
            text += f":({before}){self.cursor.integer()}"
        return text, token.position

    def sharding(self, places: Mapping[int, Held], rank: int) -> Sharding | None:
        """`@m + replicated(tp) + partial(sum: tp)` after the shape; None if no mesh follows.

        `places` are the braces after sizes, by the number of the dim.
        """
        held = [places.get(i, UNSPLIT) for i in range(rank)]
        token = self.cursor.next
        if token.kind != "name" or token.text[0] != "@":
            if any(axes or is_open for axes, is_open, *_ in held):
                self.cursor.fail("expected the mesh of the axes, such as @m")
            return None
        mesh = self.meshes.get(self.cursor.take().text[1:])
        if mesh is None:
            known = ", ".join(f"@{name}" for name in self.meshes) or "none"
            self.cursor.fail(f"expected a mesh ({known}), found {token.text}", token.position)
        dims = tuple(
            DimSharding(
                tuple(self._known(mesh, *axis) for axis in axes), is_open, priority, overlap
            )
            for axes, is_open, priority, overlap in held
        )
        found: dict[str, Axes] = {"replicated": (), "partial": ()}
        kind = "sum"
        while self.cursor.accept("+"):
            word = self.cursor.expect_kind("word", "replicated or partial")
            if word.text not in found:
                self.cursor.fail(
                    f"expected replicated or partial, found {word.text!r}", word.position
                )
            self.cursor.expect("(")
            if word.text == "partial":
                kind = self.cursor.expect_kind("word", f"one of {', '.join(PARTIAL_KINDS)}").text
                self.cursor.expect(":")
            axes: list[MeshAxis] = []
            while self.cursor.more(")", axes):
                axes.append(self._known(mesh, *self._axis()))
            found[word.text] = tuple(axes)
        return Sharding(mesh, dims, found["replicated"], found["partial"], kind)

    def _known(self, mesh: Mesh, text: str, position: int) -> MeshAxis:
        try:
            return mesh.axis(text)
        except RuleError as error:
            self.cursor.fail(f"expected an axis: {error}", position)
