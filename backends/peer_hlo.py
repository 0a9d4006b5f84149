"""Reads optimized HLO text: executed instructions, what is fused in them, and source lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .peer import is_library

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_SHAPE = re.compile(r"^\w+\[([\d,]*)\]")
_SCOPE = re.compile(r"(?:^|/)ir(\d+)(?=/|$)")
_TABLE_ROW = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})$')
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_METADATA = re.compile(r", (?:metadata|backend_config|frontend_attributes)=\{.*\}")
# instructions that do no work
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota",
    "partition-id", "replica-id", "opt-barrier",
}  # fmt: skip
_LIBRARY = {"dot", "convolution", "custom-call", "fft", "cholesky", "triangular-solve", "sort"}


@dataclass
class Instruction:
    """One HLO instruction.

    called: computations that it runs.
    scopes: numbers in the `ir<number>` scopes of its name, innermost last.
    size: number of elements of the result.
    line: "block.py:42", the user's innermost line.
    primitive: the name of the op in the user's framework.
    """

    name: str
    op: str
    text: str
    called: tuple[str, ...] = ()
    scopes: tuple[int, ...] = ()
    size: int = 0
    line: str = ""
    primitive: str = ""


@dataclass
class Module:
    """The computations of an HLO module, by name."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields an instruction, and all instructions of the computations that it calls."""
        seen: set[str] = set()
        pending = [instruction]
        while pending:
            current = pending.pop()
            yield current
            for name in current.called:
                if name not in seen:
                    seen.add(name)
                    pending.extend(self.computations.get(name, ()))


def read_hlo(text: str) -> Module:
    """Parses the text of a module, and ignores what it does not know."""
    module = Module()
    frames = _Frames(text)
    current: list[Instruction] | None = None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = module.computations.setdefault(header[2], [])
            if header[1]:
                module.entry = header[2]
            continue
        found = _INSTRUCTION.match(line)
        if found and current is not None:
            current.append(_instruction(found, line, frames))
    return module


def _instruction(found: re.Match[str], line: str, frames: _Frames) -> Instruction:
    shape = _SHAPE.match(found[2])
    sizes = [int(d) for d in shape[1].split(",") if d] if shape else [0]
    op_name = _field(line, "op_name")
    called = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        called += [b.strip().lstrip("%") for b in branches.split(",")]
    frame = _field(line, "stack_frame_id")
    source = frames.line(int(frame)) if frame else ""
    if not source and _field(line, "source_file"):
        path = _field(line, "source_file")
        source = f"{path.rpartition('/')[2]}:{_field(line, 'source_line')}"
    return Instruction(
        found[1],
        found[3],
        line.strip(),
        tuple(dict.fromkeys(called)),
        tuple(int(s) for s in _SCOPE.findall(op_name)[-1:]),
        math.prod(sizes),
        source,
        op_name.rpartition("/")[2],
    )


def _field(line: str, name: str) -> str:
    found = re.search(rf'\b{name}=(?:"([^"]*)"|(\d+))', line)
    return (found[1] or found[2] or "") if found else ""


class _Frames:
    """The tables of source lines at the head of a module."""

    def __init__(self, text: str) -> None:
        self.tables: dict[str, dict[int, str]] = {}
        table: dict[int, str] | None = None
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = self.tables.setdefault(line, {})
                continue
            row = _TABLE_ROW.match(line)
            if row is None:
                table = None if line.strip() else table
            elif table is not None:
                table[int(row[1])] = row[2] if row[2] is not None else row[3]

    def line(self, frame: int) -> str:
        """The user's innermost line of a stack."""
        seen: set[int] = set()
        while frame not in seen:
            seen.add(frame)
            row = self.tables.get("StackFrames", {}).get(frame)
            if row is None:
                return ""
            place = self.tables.get("FileLocations", {}).get(_number(row, "file_location_id"), "")
            path = self.tables.get("FileNames", {}).get(_number(place, "file_name_id"), "")
            if path and not is_library(path):
                return f"{path.rpartition('/')[2]}:{_number(place, 'line')}"
            frame = _number(row, "parent_frame_id")
        return ""


def _number(row: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", row)
    return int(found[1]) if found else 0


def code_of(module: Module, name: str) -> str:
    """The text of an instruction and the computations that it runs, without metadata."""
    everything = (x for body in module.computations.values() for x in body)
    first = next((x for x in everything if x.name == name), None)
    if first is None:
        return ""
    lines = [_METADATA.sub("", first.text)]
    called = dict.fromkeys(c for x in module.inside(first) for c in x.called)
    for computation in called:
        lines.append(f"\n%{computation} {{")
        inner = module.computations.get(computation, ())
        lines.extend(f"  {_METADATA.sub('', x.text)}" for x in inner)
        lines.append("}")
    return "\n".join(lines) + "\n"


# name, kind, instructions inside
Step = tuple[str, str, list[Instruction]]


def steps(module: Module) -> list[Step]:
    """Returns the executed instructions of an HLO module in order, each with those inside it.

    Each is `(name, kind, instructions inside)`. Bodies of loops and branches are listed once.
    """
    found: list[Step] = []
    seen: set[str] = set()

    def visit(computation: str) -> None:
        if computation in seen:
            return
        seen.add(computation)
        for x in module.computations.get(computation, ()):
            if x.op in _FREE:
                continue
            if x.op in ("while", "conditional"):
                for name in x.called:
                    visit(name)
                continue
            inner = [i for i in module.inside(x) if i.op not in ("parameter", "constant", "fusion")]
            # a step that also computes is not named after its moves
            real = [i for i in inner if i.op not in ("bitcast", "copy")]
            found.append((x.name, _kind(x), real or inner))

    visit(module.entry)
    return found


def _kind(x: Instruction) -> str:
    if x.op in _LIBRARY:
        return "library"
    # XLA's own name for a fusion that it passes to YNNPACK, oneDNN or cuBLAS as a whole
    is_given = x.op == "fusion" and re.search(r'"kind":"__\w*(ynn|xnn|onednn|cublas|cudnn)', x.text)
    return "library" if is_given else "generated"
