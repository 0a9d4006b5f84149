"""Shared by the peers: origins of kernels in our IR, lazy measurements, quiet compilers."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.cost import total
from stack.ir.data import storage_dtype
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.ir.types import TensorType
from stack.releases import install_hint
from stack.run.backend import Executable, Kernel, source_lines

_KEY = re.compile(r"^\s*%(\S+) = ", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY_PATH = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")
_HERE = Path(__file__).resolve().parent
_OURS = (_HERE, _HERE.parent / "stack" / "run")
_FRONTENDS = _HERE.parent / "frontends"


class Origins:
    """Gives every node of a function a unique key, for compilers that carry text along with ops.

    A node's key is its name; nodes of inner blocks get a number if their name is taken.
    """

    def __init__(self, func: Func) -> None:
        self.keys: dict[Node, str] = {}
        self.nodes: dict[str, Node] = {}
        self.lines: dict[Node, tuple[str, ...]] = {}
        self.order: dict[Node, int] = {}
        self.results = set(func.results)
        self.users: dict[Node, set[Node]] = {}
        for block, node in walk(func.body):
            self.lines[node] = self.lines.get(node) or tuple(block.locs.get(node, ()))
            for arg in node.args:
                self.users.setdefault(arg, set()).add(node)
            if node in self.keys:
                continue
            key = name = block.names.get(node) or node.op
            count = 1
            while key in self.nodes:
                count += 1
                key = f"{name}~{count}"
            self.order[node] = len(self.order)
            self.keys[node] = key
            self.nodes[key] = node

    def trace(self, node: Node) -> str:
        """The node as a Python stack trace, which frameworks carry from op to op."""
        rows: list[str] = []
        for line in self.lines.get(node) or (f"{node.op}:0",):
            place, _, scope = line.partition(" ")
            file, _, number = place.rpartition(":")
            rows.append(f'  File "{file}", line {number}, in {scope or "forward"}')
            rows.append(f"    %{self.keys[node]} = {node.op}")
        return "\n".join(rows)

    def found(self, texts: Iterable[str]) -> list[Node]:
        """The nodes named in traces or other texts by `%key = `, in program order."""
        keys = {key for text in texts for key in _KEY.findall(text)}
        return self.sort(self.nodes[key] for key in keys if key in self.nodes)

    def sort(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(set(nodes), key=self.order.__getitem__)

    def kernel(
        self, name: str, kind: str, nodes: Iterable[Node], text: str = "", extension: str = "txt"
    ) -> Kernel:
        """Returns the record of a kernel that computes these nodes."""
        group = self.sort(n for n in nodes if n.op not in ("param", "const", "item"))
        return Kernel(
            name=name,
            kind=kind,
            text=text,
            extension=extension,
            stage_node=" ".join(self.keys[n] for n in group),
            source=source_lines(line for n in group for line in self.lines[n]),
            ops=tuple(dict.fromkeys(n.op for n in group)),
            flops=float(total(group).flops),
            bytes=self._bytes(group),
        )

    def _bytes(self, group: Sequence[Node]) -> float:
        """Bytes that enter a group, and bytes of results used outside of it."""
        own = set(group)
        entering = {a for n in group for a in n.args if a not in own and a.op != "const"}
        leaving = {n for n in group if n in self.results or self.users.get(n, set()) - own}
        return float(sum(map(_size, entering)) + sum(map(_size, leaving)))


def user_line(trace: str) -> str:
    """`block.py:42`, the user's innermost frame in a Python trace; "" if there is none."""
    for file, number in reversed(_FRAME.findall(trace)):
        if not is_library(file):
            return f"{file.rpartition('/')[2]}:{number}"
    return ""


def is_library(file: str) -> bool:
    """True for a frame of a library, or of our code that drives the peers."""
    if _LIBRARY_PATH.search(file):
        return True
    path = Path(file).resolve()
    return path.parent in _OURS or path.is_relative_to(_FRONTENDS)


def _size(node: Node) -> float:
    return float(sum(t.bytes for t in node.types if isinstance(t.bytes, int)))


class PeerExecutable(Executable):
    """An executable whose kernels and peak memory are determined on demand, not while compiling.

    Determining them runs or parses the program again, which would count as compile time.
    """

    def __init__(
        self,
        *,
        find_kernels: Callable[[], list[Kernel]] | None = None,
        find_peak: Callable[[], int | None] | None = None,
        **fields: Any,
    ) -> None:
        self._find_kernels = find_kernels
        self._find_peak = find_peak
        super().__init__(**fields)

    @property
    def kernels(self) -> list[Kernel]:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._find_kernels is not None:
            make, self._find_kernels = self._find_kernels, None
            self._kernels = make()
        return self._kernels

    @kernels.setter
    def kernels(self, value: list[Kernel]) -> None:
        self._kernels = value

    @property
    def peak_bytes(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._find_peak is not None:
            make, self._find_peak = self._find_peak, None
            self._peak = make()
        return self._peak

    @peak_bytes.setter
    def peak_bytes(self, value: int | None) -> None:
        self._peak = value


def need(package: str, extra: str) -> Callable[[], str | None]:
    """Returns a `missing` function for one package, which looks for it without importing it."""

    def missing() -> str | None:
        if importlib.util.find_spec(package) is not None:
            return None
        return f"install the extra: {install_hint(extra)}"

    return missing


def zeros(func: Func) -> list[np.ndarray]:
    """Storage arrays to run a program on, if the values do not matter."""
    return [np.zeros(fixed_shape(p.tensor), storage_dtype(p.dtype)) for p in func.params]


def fixed_shape(type_: TensorType) -> tuple[int, ...]:
    """The shape of a type without size symbols."""
    return tuple(int(d) for d in type_.shape)  # pyright: ignore[reportArgumentType]


def refuse(peer: str, takes: str) -> StackError:
    """The error that `native` raises for a program of another framework."""
    return StackError(
        f"{peer} takes {takes} programs natively; this one is from another framework"
        f" and reaches {peer} through the IR"
    )


def is_from(framework: str, captured: Any) -> bool:
    """True if a captured program is from this framework."""
    import stack.plugins as plugins

    frontend = plugins.load("stack.frontends", framework)
    return bool(frontend.accepts(captured.original, captured.args))


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """No warnings and no log lines below errors while a peer works."""
    known = [logging.getLogger(name) for name in loggers]
    levels = [logger.level for logger in known]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in known:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(known, levels, strict=True):
                logger.setLevel(level)
