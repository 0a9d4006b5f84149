"""Processes that stay: one for each rank, for tests and for demos on one machine.

They are forked from a server that has imported what they need, so that a second pool takes no
time. A rank that dies, raises or is late ends the run on all ranks, and is named.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, NoReturn

from stack.errors import StackError, UsageError

Task = Callable[..., Any]


class Ranks:
    """A pool of `count` processes; use it with `with`.

    Args:
        count: how many.
        preload: modules that all of them need.
        limit: seconds that a task may take.
    """

    def __init__(self, count: int, preload: Sequence[str] = (), limit: float = 120.0) -> None:
        if count < 1:
            raise UsageError(f"{count} ranks; at least one takes part")
        self.limit = limit
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *preload])
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs,), daemon=True, name=f"rank{rank}"
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, task: Task, *args: Any) -> list[Any]:
        """`task(rank, ranks, *args)` on all ranks, and what each returns.

        Raises StackError where one raises, dies or is late; then the pool is closed.
        """
        return self.run_each(task, [args] * len(self.pipes))

    def run_each(self, task: Task, args: Sequence[Sequence[Any]]) -> list[Any]:
        """The same, with arguments for each rank."""
        if not self.processes:
            raise StackError("the ranks have ended")
        for rank, (pipe, own) in enumerate(zip(self.pipes, args, strict=True)):
            pipe.send((task, (rank, len(self.pipes), *own)))
        found: dict[int, Any] = {}
        end = time.monotonic() + self.limit
        while len(found) < len(self.pipes):
            missing = [r for r in range(len(self.pipes)) if r not in found]
            ready = wait([self.pipes[r] for r in missing], max(end - time.monotonic(), 0))
            if not ready:
                self._fail(f"ranks {missing} are late: {self.limit:g} s are over")
            for rank in missing:
                if self.pipes[rank] in ready:
                    found[rank] = self._answer(rank)
        return [found[rank] for rank in range(len(self.pipes))]

    def _answer(self, rank: int) -> Any:
        try:
            is_ok, value = self.pipes[rank].recv()
        except (EOFError, ConnectionError):
            self.processes[rank].join(5)
            self._fail(f"rank {rank} has died with code {self.processes[rank].exitcode}")
        if not is_ok:
            self._fail(f"rank {rank}: {value}")
        return value

    def _fail(self, text: str) -> NoReturn:
        self.close()
        raise StackError(text)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.processes.clear()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _serve(pipe: Any) -> None:
    """What a process of the pool does."""
    while True:
        try:
            task, args = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = True, task(*args)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        pipe.send(answer)
