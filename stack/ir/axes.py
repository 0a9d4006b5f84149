"""Axis rules: one einops-like statement per op, from which shapes, costs and maps follow.

    rule    :=  operand ("," operand)* "->" operand ("," operand)*
    operand :=  axis*          axis := name | "(" name+ ")" | "1"      suffix marks: ! ~ ^

A name on both sides passes through; a name missing from the outputs is reduced; a name missing
from an input is broadcast along it. `(h d)` is one dim made of two axes, major first. `k!` needs
the whole axis in one place, `s~` is carried in order, `x^` is read through a window or offset.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from stack.errors import RuleError
from stack.ir.dim import Dim, add, floordiv, mod, mul, product

Index = tuple[Dim, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Axis:
    """One dim of an operand: the names that it is made of (none for `1`) and its mark."""

    names: tuple[str, ...]
    mark: str = ""

    def __str__(self) -> str:
        if len(self.names) == 1:
            return self.names[0] + self.mark
        return ("(" + " ".join(self.names) + ")" if self.names else "1") + self.mark


Operand = tuple[Axis, ...]


def operand_text(operand: Operand) -> str:
    return " ".join(map(str, operand))


@dataclass(frozen=True)
class Rule:
    """A parsed axis rule."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    def __str__(self) -> str:
        left = ", ".join(map(operand_text, self.inputs))
        return f"{left} -> {', '.join(map(operand_text, self.outputs))}".strip()

    @property
    def reduced(self) -> tuple[str, ...]:
        """Axis names of inputs that no output has, in order."""
        kept = {n for operand in self.outputs for axis in operand for n in axis.names}
        seen: dict[str, None] = {}
        for operand in self.inputs:
            for axis in operand:
                for name in axis.names:
                    if name not in kept and axis.mark != "!":
                        seen[name] = None
        return tuple(seen)

    @property
    def whole(self) -> frozenset[str]:
        """Axes that are needed whole in one place (mark `!`)."""
        return frozenset(
            n
            for operand in (*self.inputs, *self.outputs)
            for axis in operand
            if axis.mark == "!"
            for n in axis.names
        )

    def sizes(self, shapes: Sequence[tuple[Dim, ...]]) -> dict[str, Dim]:
        """Axis sizes from the input shapes.

        Composed axes with one unknown factor are solved. Raises RuleError where an axis has two
        sizes, or an operand has the wrong rank.
        """
        if len(shapes) != len(self.inputs):
            raise RuleError(f"rule {self} takes {len(self.inputs)} operands, got {len(shapes)}")
        found: dict[str, Dim] = {}
        for position, (operand, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            if len(operand) != len(shape):
                raise RuleError(
                    f"operand {position} of rule '{self}' has {len(operand)} axes"
                    f" ({operand_text(operand)}), its value has shape {list(shape)}"
                )
            for axis, size in zip(operand, shape, strict=True):
                if len(axis.names) == 1:
                    self._agree(found, axis.names[0], size, position)
                elif not axis.names and size != 1:
                    raise RuleError(f"operand {position} of '{self}': expected 1, got {size}")
        for operand, shape in zip(self.inputs, shapes, strict=True):
            for axis, size in zip(operand, shape, strict=True):
                unknown = [n for n in axis.names if n not in found]
                if len(axis.names) > 1 and len(unknown) == 1:
                    known = product([found[n] for n in axis.names if n in found])
                    found[unknown[0]] = floordiv(size, known)
        return found

    def _agree(self, found: dict[str, Dim], name: str, size: Dim, position: int) -> None:
        if found.setdefault(name, size) != size:
            raise RuleError(
                f"axis {name!r} of rule '{self}' has two sizes: {found[name]} and {size}"
                f" (operand {position})"
            )

    def output_shapes(self, shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, ...]]:
        """Shapes of the outputs from the shapes of the inputs."""
        sizes = self.sizes(shapes)
        return [
            tuple(product([sizes[n] for n in axis.names]) for axis in operand)
            for operand in self.outputs
        ]

    def pull(self, index: Index, sizes: dict[str, Dim], reduced: dict[str, Dim]) -> list[Index]:
        """Index of every input that an output element reads.

        `index` is the index of output 0; `reduced` gives an index for each reduced axis.
        """
        place: dict[str, Dim] = dict(reduced)
        for axis, position in zip(self.outputs[0], index, strict=True):
            place.update(_unravel(axis, position, sizes))
        return [tuple(_ravel(axis, place, sizes) for axis in operand) for operand in self.inputs]


def _unravel(axis: Axis, position: Dim, sizes: dict[str, Dim]) -> dict[str, Dim]:
    if len(axis.names) == 1:
        return {axis.names[0]: position}
    out: dict[str, Dim] = {}
    inner: Dim = 1
    for depth, name in enumerate(reversed(axis.names)):
        part = floordiv(position, inner)
        is_outermost = depth == len(axis.names) - 1
        out[name] = part if is_outermost else mod(part, sizes[name])
        inner = mul(inner, sizes[name])
    return out


def _ravel(axis: Axis, place: dict[str, Dim], sizes: dict[str, Dim]) -> Dim:
    total: Dim = 0
    for name in axis.names:
        total = add(mul(total, sizes[name]), place[name])
    return total


_TOKEN = re.compile(r"\s*(->|,|\(|\)|[A-Za-z_][A-Za-z_0-9]*|1)([!~^]?)")


@cache
def parse_rule(text: str) -> Rule:
    """Parse `"b s k, k n -> b s n"`; raises RuleError naming the position."""
    sides: list[list[Operand]] = [[]]
    operand: list[Axis] = []
    group: list[str] | None = None
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match[2] and match[1] in ("->", ",", "(")):
            raise RuleError(f"axis rule {text!r}: unexpected text at column {position + 1}")
        token, mark = match[1], match[2]
        position = match.end()
        if token in ("->", ","):
            if group is not None:
                raise RuleError(f"axis rule {text!r}: '(' is not closed")
            sides[-1].append(tuple(operand))
            operand = []
            if token == "->":
                sides.append([])
        elif token == "(":
            group = []
        elif token == ")":
            if not group:
                raise RuleError(f"axis rule {text!r}: ')' without names before it")
            operand.append(Axis(tuple(group), mark))
            group = None
        elif group is not None:
            group.append(token)
        else:
            operand.append(Axis(() if token == "1" else (token,), mark))
    sides[-1].append(tuple(operand))
    if len(sides) != 2 or group is not None:
        raise RuleError(f"axis rule {text!r} needs exactly one '->' and closed brackets")
    return Rule(tuple(sides[0]), tuple(sides[1]))


def names(rank: int) -> tuple[str, ...]:
    """`rank` distinct axis names: a, b, c, ..."""
    return tuple(LETTERS[i] if i < 26 else f"x{i}" for i in range(rank))


def plain(axes: Sequence[str], mark: str = "") -> Operand:
    """An operand of single-name axes."""
    return tuple(Axis((name,), mark) for name in axes)


def reshape_rule(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> Rule | None:
    """The split/merge rule of a reshape, or None where dims neither split nor merge cleanly."""
    letters = iter(names(len(source) + len(target) + 1))
    left: list[Axis] = []
    right: list[Axis] = []
    i = j = 0
    while i < len(source) or j < len(target):
        group_l = [source[i]] if i < len(source) else []
        group_r = [target[j]] if j < len(target) else []
        i, j = i + len(group_l), j + len(group_r)
        if group_l == [1] and group_r != [1]:
            left.append(Axis(()))
            j -= len(group_r)
            continue
        if group_r == [1] and group_l != [1]:
            right.append(Axis(()))
            i -= len(group_l)
            continue
        while product(group_l) != product(group_r):
            if (len(group_l) <= len(group_r) or j >= len(target)) and i < len(source):
                group_l.append(source[i])
                i += 1
            elif j < len(target):
                group_r.append(target[j])
                j += 1
            else:
                return None
            if len(group_l) > 1 and len(group_r) > 1:
                return None
        axes = [next(letters) for _ in range(max(len(group_l), len(group_r)))]
        if len(group_l) == 1 and len(group_r) == 1:
            left.append(Axis((axes[0],)))
            right.append(Axis((axes[0],)))
        elif len(group_l) == 1:
            left.append(Axis(tuple(axes)))
            right.extend(Axis((a,)) for a in axes)
        else:
            left.extend(Axis((a,)) for a in axes)
            right.append(Axis(tuple(axes)))
    return Rule((tuple(left),), (tuple(right),))


def linearize(index: Index, shape: tuple[Dim, ...]) -> Dim:
    """Row-major offset of an index."""
    total: Dim = 0
    for position, size in zip(index, shape, strict=True):
        total = add(mul(total, size), position)
    return total


def delinearize(offset: Dim, shape: tuple[Dim, ...]) -> Index:
    """Index of a row-major offset."""
    out: list[Dim] = []
    for axis in range(len(shape)):
        inner = product(shape[axis + 1 :])
        part = floordiv(offset, inner) if inner != 1 else offset
        out.append(part if axis == 0 else mod(part, shape[axis]))
    return tuple(out)
