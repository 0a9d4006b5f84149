"""Axis rules: one einops-like expression per op. Shapes, costs and index maps follow from it.

    rule    :=  operand ("," operand)* "->" operand ("," operand)*
    operand :=  axis*          axis := name | "(" name+ ")" | "1"      suffix marks: ! ~ ^

A name on both sides passes through; a name missing from the outputs is reduced; a name missing from
an input is broadcast along it. `(h d)` is one dim composed of two axes, the major one first. `k!`
is needed whole in one place, `s~` is carried in order, and `x^` is read through a window or offset,
which the op's record defines (`stack.ir.relation.Window`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from stack.errors import RuleError
from stack.ir.dim import Dim, equal, floordiv, mul, product

Index = tuple[Dim, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Axis:
    """One dim of an operand in an axis rule: the names of the axes that it merges (none for a dim
    of size 1, written `1`), and its mark `!`, `^` or `~`, which says that elements are not read one
    by one.
    """

    names: tuple[str, ...]
    mark: str = ""

    def __str__(self) -> str:
        if len(self.names) == 1:
            return self.names[0] + self.mark
        return ("(" + " ".join(self.names) + ")" if self.names else "1") + self.mark


Operand = tuple[Axis, ...]


def operand_text(operand: Operand) -> str:
    """One operand as it is written in a rule."""
    return " ".join(map(str, operand))


@dataclass(frozen=True)
class Rule:
    """A parsed axis rule."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.inputs, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        left = ", ".join(map(operand_text, self.inputs))
        return f"{left} -> {', '.join(map(operand_text, self.outputs))}".strip()

    @property
    def reduced(self) -> tuple[str, ...]:
        """Names of the axes that an input has and no output has, in order. Leaves out axes of dims
        with a mark such as `!`.
        """
        kept = {n for operand in self.outputs for axis in operand for n in axis.names}
        read = [n for operand in self.inputs for a in operand if not a.mark for n in a.names]
        return tuple(dict.fromkeys(n for n in read if n not in kept))

    @property
    def is_plain(self) -> bool:
        """True if every dim is one unmarked axis."""
        sides = (*self.inputs, *self.outputs)
        return all(not a.mark and len(a.names) == 1 for operand in sides for a in operand)

    @property
    def whole(self) -> frozenset[str]:
        """Names of the axes marked `!`: an element may depend on the whole axis, so the axis must
        not be split.
        """
        return frozenset(
            n
            for operand in (*self.inputs, *self.outputs)
            for axis in operand
            if axis.mark == "!"
            for n in axis.names
        )

    def sizes(self, shapes: Sequence[tuple[Dim, ...]]) -> dict[str, Dim]:
        """Axis sizes from the input shapes.

        Solves composed axes with one unknown factor. Raises RuleError if an axis has two sizes or
        none, or if an operand has the wrong rank.
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
        left = [
            (axis, size, position)
            for position, (operand, shape) in enumerate(zip(self.inputs, shapes, strict=True))
            for axis, size in zip(operand, shape, strict=True)
            if len(axis.names) > 1
        ]
        while left:
            # solving one may determine the factors of another
            first = min(left, key=lambda item: sum(n not in found for n in item[0].names))
            left.remove(first)
            self._solve(found, *first)
        return found

    def _solve(self, found: dict[str, Dim], axis: Axis, size: Dim, position: int) -> None:
        unknown = [n for n in axis.names if n not in found]
        known = product([found[n] for n in axis.names if n in found])
        if len(unknown) > 1:
            raise RuleError(
                f"the sizes of {' and '.join(unknown)} in '{self}' do not follow from its operands"
            )
        if unknown:
            found[unknown[0]] = floordiv(size, known) if known != 0 else 0
            known = mul(known, found[unknown[0]])
        if equal(known, size) is False:
            raise RuleError(
                f"axis {axis} of rule '{self}' has size {size} (operand {position}), which is not"
                f" the product of {', '.join(f'{n}={found[n]}' for n in axis.names)}"
            )

    def _agree(self, found: dict[str, Dim], name: str, size: Dim, position: int) -> None:
        if found.setdefault(name, size) != size:
            raise RuleError(
                f"axis {name!r} of rule '{self}' has two sizes: {found[name]} and {size}"
                f" (operand {position})"
            )

    def output_shapes(self, shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, ...]]:
        """Shapes of the outputs from the shapes of the inputs."""
        return list(_output_shapes(self, tuple(shapes)))


@lru_cache(maxsize=1 << 12)
def _output_shapes(rule: Rule, shapes: tuple[Index, ...]) -> tuple[Index, ...]:
    sizes = rule.sizes(shapes)
    try:
        return tuple(tuple(_length(axis, sizes) for axis in operand) for operand in rule.outputs)
    except KeyError as error:
        raise RuleError(f"axis {error} of rule '{rule}' is in no operand") from error


def _length(axis: Axis, sizes: Mapping[str, Dim]) -> Dim:
    if len(axis.names) == 1:
        return sizes[axis.names[0]]
    return product([sizes[n] for n in axis.names])


def unmarked(rule: Rule) -> Rule:
    """Returns the axis rule with the marks `!`, `^` and `~` removed from all dims."""
    sides = (tuple(tuple(Axis(a.names) for a in o) for o in s) for s in (rule.inputs, rule.outputs))
    return Rule(*sides)


_TOKEN = re.compile(r"\s*(->|,|\(|\)|[A-Za-z_][A-Za-z_0-9]*|1)([!~^]?)")


@lru_cache(maxsize=1 << 12)
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
            if group is not None:
                raise RuleError(f"axis rule {text!r}: '(' inside of '('")
            group = []
        elif token == ")":
            if not group:
                raise RuleError(f"axis rule {text!r}: ')' without names before it")
            operand.append(Axis(tuple(group), mark))
            group = None
        elif group is not None:
            if mark or token == "1":
                raise RuleError(f"axis rule {text!r}: {token + mark!r} inside of brackets")
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
    """Returns an operand of an axis rule in which each dim is a single axis of this name, all with
    the same mark.
    """
    return tuple([_single(name, mark) for name in axes])


@lru_cache(maxsize=1 << 10)
def _single(name: str, mark: str) -> Axis:
    return Axis((name,), mark)


def reshape_groups(source: Index, target: Index) -> list[tuple[slice, slice]]:
    """Partitions the dims of a reshape into minimal groups of equal size.

    A group with one source dim is a split, with one target dim a merge. Dims of size 1 without a
    counterpart form groups of their own. With symbolic sizes or size 0, the dims that cannot be
    matched form one last group.
    """
    groups: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        width, height = _next_group(source[i:], target[j:])
        groups.append((slice(i, i + width), slice(j, j + height)))
        i, j = i + width, j + height
    return groups


def _next_group(source: Index, target: Index) -> tuple[int, int]:
    first = (source[:1], target[:1])
    if first[0] != first[1]:
        if first[0] == (1,):
            return 1, 0
        if first[1] == (1,):
            return 0, 1
    merged: dict[Dim, int] = {}
    total: Dim = 1
    for width, size in enumerate(source, 1):
        total = mul(total, size)
        merged.setdefault(total, width)
    best: tuple[int, int] | None = None
    total = 1
    for height, size in enumerate(target, 1):
        total = mul(total, size)
        width = merged.get(total)
        if width is not None and (best is None or width + height < sum(best)):
            best = (width, height)
    return best or (len(source), len(target))


def reshape_rule(source: Index, target: Index) -> Rule:
    """Returns the axis rule of a reshape, such as `b (h d) -> b h d`. Dims that neither keep their
    size nor are split or merged are marked `!`: their elements may come from anywhere along the
    dim.
    """
    letters = iter(names(len(source) + len(target)))
    left: list[Axis] = []
    right: list[Axis] = []
    for read, made in reshape_groups(source, target):
        width, height = len(source[read]), len(target[made])
        is_clean = product(source[read]) == product(target[made]) and min(width, height) < 2
        if not is_clean:
            left.extend(Axis((next(letters),), "!") for _ in range(width))
            right.extend(Axis((next(letters),), "!") for _ in range(height))
        elif width == 0 or height == 0:
            left.extend([Axis(())] * width)
            right.extend([Axis(())] * height)
        else:
            axes = [next(letters) for _ in range(max(width, height))]
            whole = (Axis(tuple(axes)),)
            left.extend(whole if width == 1 else plain(axes))
            right.extend(whole if height == 1 else plain(axes))
    return Rule((tuple(left),), (tuple(right),))
