"""Texts as lines that are linked to source lines, values and kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from stack.explore.diff import without_lines
from stack.ir.func import Func
from stack.report.content import GROUPS, Report, StageView
from stack.report.markup import Html, escaped, tag

_PLACE = re.compile(r"[\w.\-<>]+:\d+")
_VALUE = re.compile(r"^\s*(%[^\s=,]+)(?:, %[^\s=,]+)* = ")


class Index:
    """Numbers of a program's source lines and kernels, as used in HTML attributes of the page."""

    def __init__(self, report: Report) -> None:
        self.lines: Mapping[str, int] = {line: i for i, line in enumerate(report.lines)}
        self.kernels = [
            [self.numbers(k.source) for k in system.kernels] for system in report.systems
        ]
        self.by_value = _kernels_by_value(report)
        self.by_node = {k.node: i for i, k in enumerate(report.kernels) if k.node}

    def without_kernels(self) -> Index:
        """Returns a copy that links nothing to kernels, for the texts of other runs."""
        made = copy(self)
        made.by_value, made.by_node = {}, {}
        return made

    def numbers(self, lines: Iterable[str]) -> list[int]:
        """Returns the numbers of source lines; skips lines that are not in the program."""
        return [self.lines[line] for line in dict.fromkeys(lines) if line in self.lines]

    def of_line(self, line: int) -> list[int]:
        """Returns the numbers of our kernels that compute part of the source line number `line`."""
        return [k for k, lines in enumerate(self.kernels[0]) if line in lines]


def _kernels_by_value(report: Report) -> dict[str, list[int]]:
    """Maps the name of each value to the numbers of the kernels that compute it.

    A value inside of a group is computed by the kernel of the group.
    """
    nodes = {k.node: i for i, k in enumerate(report.kernels) if k.node}
    stage = report.grouped
    found: dict[str, list[int]] = {}
    if stage is None or stage.func is None:
        return found
    body = stage.func.body
    for node in body.nodes:
        name = body.names.get(node, "")
        kernel = nodes.get(name)
        if kernel is None:
            continue
        inner = [own for block in node.blocks for own in block.names.values()]
        for value in (name, *(inner if node.op in GROUPS else ())):
            held = found.setdefault(value, [])
            if kernel not in held:
                held.append(kernel)
    return found


def defined(line: str) -> str:
    """Returns the name of the value that a line of IR text defines; "" if it defines none."""
    value = _VALUE.match(line)
    return value[1].removeprefix("%") if value else ""


def joined_numbers(numbers: Sequence[int]) -> str | None:
    """Formats numbers as the value of an HTML attribute, such as `3 5`.

    Returns None if there are no numbers, so that the attribute is omitted.
    """
    return " ".join(map(str, numbers)) or None


def stage_lines(stage: StageView, index: Index) -> Html:
    """Returns the text of an IR stage as HTML lines, linked to the kernels that compute them.

    Source lines are left out of the text: the page shows them for the line under the pointer.

    A line is linked to the kernels of the value that it defines; inside of a group, to the kernel
    of the group.
    """
    made: list[str] = []
    inside: list[int] = []  # kernels of the enclosing group
    depth = 0
    is_whole = stage.func is not None and _has_groups(stage.func)
    for line in stage.text.rstrip("\n").split("\n"):
        name = defined(line) if stage.func is not None else ""
        indent = len(line) - len(line.lstrip())
        if stage.func is not None and is_whole and indent <= 2:
            inside = [index.by_node[name]] if name in index.by_node else []
            depth = indent
        known = inside if is_whole and indent >= depth else index.by_value.get(name, [])
        made.append(_line(line, name, index, known if name else []))
    return Html("\n".join(made))


def _has_groups(func: Func) -> bool:
    return any(n.op in GROUPS for n in func.nodes)


def code_lines(text: str, index: Index, kernels: Sequence[int] = ()) -> Html:
    """Returns the lines of generated code, linked to the source lines that their comments name.

    `kernels`: numbers of the kernels that have this code, to which all lines are linked.
    """
    rows = text.rstrip("\n").split("\n")
    return Html("\n".join(_line(line, "", index, kernels) for line in rows))


def _line(line: str, name: str, index: Index, kernels: Sequence[int]) -> str:
    numbers = index.numbers(_PLACE.findall(line)) if ":" in line else []
    if not numbers and not name:
        return f"<i>{escaped(without_lines(line))}</i>"
    marks = {
        "data_n": name or None,
        "data_s": joined_numbers(numbers),
        "data_k": joined_numbers(kernels),
    }
    return tag("i", without_lines(line), class_="pick", **marks)


def source_view(report: Report, index: Index, around: int = 2) -> Html:
    """Returns the user's source lines with some context; omissions are marked."""
    parts: list[str] = []
    for file in dict.fromkeys(line.rpartition(":")[0] for line in report.lines):
        named = {int(n): i for line, i in index.lines.items() if (n := _number(line, file))}
        rows = report.sources.get(file, "").splitlines()
        parts.append(tag("b", file))
        if not rows:
            parts.extend(_source_row(file, n, "", named[n], index) for n in sorted(named))
            continue
        wanted = sorted({m for n in named for m in range(n - around, n + around + 1)})
        before = 0
        for n in (n for n in wanted if 1 <= n <= len(rows)):
            if before and n > before + 1:
                parts.append(tag("i", "      ⋮"))
            parts.append(_source_row(file, n, rows[n - 1], named.get(n), index))
            before = n
    return Html("\n".join(parts))


def _number(line: str, file: str) -> str:
    head, _, number = line.rpartition(":")
    return number if head == file else ""


def _source_row(file: str, number: int, text: str, line: int | None, index: Index) -> str:
    shown = f"{number:5d}  {text}"
    if line is None:
        return tag("i", shown, class_="faint")
    kernels = joined_numbers(index.of_line(line))
    return tag("i", shown, class_="pick", data_l=line, data_s=line, data_k=kernels)
