"""A pool of persistent processes, one for each rank, for tests and demos on one machine.

They are forked from a server that has imported the needed modules, so that a second pool starts
fast. If a rank dies, raises or exceeds the time limit, the run ends on all ranks and the error
names it.
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
        count: number of processes.
        preload: modules that all of them need.
        limit: time limit of a task, in seconds.
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
        """Runs `task(rank, ranks, *args)` on all ranks and returns all results.

        Raises StackError if a rank raises, dies or exceeds the limit; then the pool is closed.
        """
        return self.run_each(task, [args] * len(self.pipes))

    def run_each(self, task: Task, args: Sequence[Sequence[Any]]) -> list[Any]:
        """Like `run`, with separate arguments for each rank."""
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
        """Kills all processes."""
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
    """The main loop of a worker process: runs the tasks that arrive through the pipe, and answers
    with (True, result) or (False, error text). Returns when the pipe is closed.
    """
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
