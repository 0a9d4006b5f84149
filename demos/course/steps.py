"""Build the compiler in eight steps: `compiler.py` grows by the sections of `stack/mini.py`.

The part of a step is the text of its sections, with gaps in place of the bodies of some functions.
So the solution of every step is `stack/mini.py` itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import stack.mini as mini
from stack.demos.course.lesson import Lesson

MINI = Path(mini.__file__)
HEAD = '''"""A compiler in one file, built in eight steps, b1 to b8 of the course."""
'''
GAP = "from stack.demos.course.answers import Gap\n"

# the sections of mini.py, and the functions to write: Class.method, and a hint
PARTS: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "b1": (
        (1,),
        {
            "Type.bytes": "the number of elements times the bytes of one",
            "make": "return the node that is stored under its op, args and attributes, or make it",
        },
    ),
    "b2": (
        (2,),
        {
            "Rule.parse": "split at ->, then at commas, then at spaces",
            "Rule.reduced": "the names of operands that the result lacks, each once, in order",
            "Rule.sizes": "compare the size of each axis with the size found before",
            "Rule.pull": "for each operand, the expressions of its axes",
        },
    ),
    "b3": (
        (3, 4),
        {
            "_transpose_rule": "axis i of the result is axis perm[i] of the operand",
            "_reduce_rule": "the result lacks the axes in attrs['axes']",
            "Func.nodes": "visit the operands of a node first; each node once",
            "Func.interpret": "the value of a node is OPS[node.op].numpy of its operands' values",
        },
    ),
    "b4": (
        (5,),
        {
            "_spread_to": "drop the axes of size 1 by a sum, then broadcast along the others",
            "_reduce": "make a reduce, and with keepdims a broadcast to axes of size 1",
            "trace": "make a param for each argument, call fn on tracers, return a Func",
        },
    ),
    "b5": (
        (6,),
        {
            "no_op": "the neutral number of each op; compare it by _is",
            "transposes": "the composed order is x['perm'] read at each p of node['perm']",
            "transposed_operand": "permute the names of an operand's axes in the rule of the dot",
            "rewrite": "visit operands first, then try the rules; visit what a rule returns",
        },
    ),
    "b6": (
        (7,),
        {"grad": "start with 1 at the result, go through the nodes backwards, add what arrives"},
    ),
    "b7": (
        (8,),
        {
            "reuse": "the product of the sizes of the axes that the operand lacks",
            "legal": "free movement, other readers, or how often an element would be computed",
        },
    ),
    "b8": (
        (9, 10),
        {
            "Emitter.inner": "pull the index through the rule, then fill the C text of the op",
            "Emitter.reduction": "a variable, a loop for each reduced axis, one update, the end",
            "offset": "row-major: ((i0) * size1 + i1) * size2 + i2",
        },
    ),
}


@dataclass(frozen=True)
class Step(Lesson):
    """One of the eight steps: b1 to b8."""

    @property
    def file(self) -> str:
        return "compiler.py"

    @property
    def solution(self) -> Path:
        return MINI

    @property
    def part(self) -> str:
        """The text that this step adds to `compiler.py`, with gaps."""
        sections, gaps = PARTS[self.name]
        return with_gaps("".join(_section(n) for n in sections), gaps)

    @property
    def task(self) -> str:
        return f"Run this cell once, fill the gaps in the file {self.file}, then run the next one."

    @property
    def begin(self) -> str:
        return f"!python -m stack.demos.course start {self.name}"

    @property
    def exercise(self) -> str:
        """The whole file at this step: the steps before it are solved."""
        numbers = [n for name in PARTS if name < self.name for n in PARTS[name][0]]
        return _head() + "".join(map(_section, numbers)) + self.part

    def start(self, path: Path) -> str:
        """Appends the part to the student's file, which must have the step before. Without a file,
        it starts with the steps before solved.
        """
        if not path.exists():
            path.write_text(self.exercise, encoding="utf-8")
            return ""
        text = path.read_text(encoding="utf-8")
        first = PARTS[self.name][0][0]
        if _title(first) in text:
            return f"{path} has step {self.name} already"
        if first > 1 and _title(first - 1) not in text:
            return f"{path} lacks the step before {self.name}: start that one first"
        path.write_text(f"{text.rstrip()}\n\n\n{self.part}", encoding="utf-8")
        return ""


def with_gaps(text: str, gaps: Mapping[str, str]) -> str:
    """Replaces the bodies of functions by `raise Gap(hint)`; signatures and docstrings stay."""
    lines = text.splitlines()
    found = {name: node for name, node in _functions(ast.parse(text)) if name in gaps}
    assert found.keys() == gaps.keys(), gaps.keys() - found.keys()
    for name, node in sorted(found.items(), key=lambda item: -item[1].lineno):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        assert node.end_lineno is not None
        gap = f'{" " * body[0].col_offset}raise Gap("{gaps[name]}")'
        lines[body[0].lineno - 1 : node.end_lineno] = [gap]
    return "\n".join(lines) + "\n"


def _functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """Functions of a module by name, and methods by `Class.method`."""
    found: list[tuple[str, ast.FunctionDef]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            found += [(f"{node.name}.{method.name}", method) for method in methods]
    return found


def _title(number: int) -> str:
    """The first line of a section of mini.py."""
    found = re.search(rf"^# ---- {number}  .*$", MINI.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[0]


def _section(number: int) -> str:
    text = MINI.read_text(encoding="utf-8")
    begin = text.index(_title(number))
    end = text.find(f"# ---- {number + 1}  ", begin)
    return text[begin : end if end > 0 else None]


def _head() -> str:
    """The imports, and the names that all sections use."""
    text = MINI.read_text(encoding="utf-8")
    imports = text[text.index("from __future__") : text.index(_title(1))]
    before, numpy, after = imports.partition("import numpy.typing as npt\n")
    return f"{HEAD}\n{before}{numpy}\n{GAP}{after}"
