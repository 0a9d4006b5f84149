"""`stack.capture`: collects the records of everything compiled inside a `with`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from stack.errors import StackError
from stack.run.record import Run

_OPEN: list[Capture] = []


class Capture:
    """The records of all compilations inside a `capture()`, oldest first.

    Other attributes (`stages`, `kernels`, `diff`, ...) are those of the newest record.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []

    @property
    def run(self) -> Run:
        """The record of the newest compilation. Raises StackError if nothing was compiled."""
        if not self.runs:
            raise StackError(
                "nothing was compiled inside of `stack.capture()`: programs that were compiled"
                " before are not compiled again; call torch.compiler.reset() first"
            )
        return self.runs[-1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.run, name)

    def __getitem__(self, stage: str) -> Any:
        return self.run[stage]

    def __repr__(self) -> str:
        return f"<Capture of {len(self.runs)} graph(s): {', '.join(map(repr, self.runs))}>"

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def capture() -> Generator[Capture]:
    """Record every compilation inside: by `torch.compile`, `stack.compile` or `stack.jit`."""
    made = Capture()
    _OPEN.append(made)
    try:
        yield made
    finally:
        _OPEN.remove(made)


def announce(run: Run) -> None:
    """Adds the record of a compiled graph to every `capture()` that is open."""
    for open_capture in list(_OPEN):
        open_capture.runs.append(run)
