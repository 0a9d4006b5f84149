"""`stack.capture`: collects the records of everything compiled inside a `with`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from stack.errors import StackError
from stack.explore.explored_run import ExploredRun, explored
from stack.run.record import Run, recording


class Capture:
    """The records of all compilations inside a `capture()`, oldest first.

    Other attributes (`stages`, `kernels`, `diff`, ...) are those of the newest record.
    """

    def __init__(self, records: list[Run]) -> None:
        self._records = records

    @property
    def runs(self) -> list[ExploredRun]:
        return [explored(record) for record in self._records]

    @property
    def run(self) -> ExploredRun:
        """The record of the newest compilation. Raises StackError if nothing was compiled."""
        if not self._records:
            raise StackError(
                "nothing was compiled inside of `stack.capture()`: programs that were compiled"
                " before are not compiled again; call torch.compiler.reset() first"
            )
        return explored(self._records[-1])

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
    with recording() as records:
        yield Capture(records)
