"""Client of the process that times programs: JSON lines, with a timeout."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

LONGEST = 120.0  # seconds without a line, including start and compilation


@dataclass(frozen=True)
class Reply:
    """The result of timing one program: its seconds, or the reason why there are none."""

    seconds: float | None
    problem: str = ""


class Child:
    """A child process, `stack.tune.worker`, that compiles and times programs.

    Args:
        backend: its name.
        options: of the backend; other values than bool, int, float and str are dropped.
        programs: texts of functions to time, in order.
        longest: timeout in seconds without a reply.
    """

    def __init__(
        self,
        backend: str,
        options: dict[str, Any],
        programs: Sequence[str],
        longest: float = LONGEST,
        command: Sequence[str] = (sys.executable, "-m", "stack.tune.worker"),
    ) -> None:
        plain = {k: v for k, v in options.items() if isinstance(v, str | int | float | bool)}
        request = {"backend": backend, "options": plain, "programs": list(programs)}
        self.longest = longest
        self.problem = ""
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        assert self.process.stdin and self.process.stdout and self.process.stderr
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True).start()
        try:
            json.dump(request, self.process.stdin)
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once: `replies` reports how

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.put(line)
        self.lines.put(None)

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            if line.strip():
                self.said.append(line.strip())

    def replies(self) -> Iterator[Reply]:
        """Yields a reply for each program, until the process ends or sends no reply within
        `longest` seconds.

        Sets `problem` then to the reason why it ended.
        """
        while True:
            try:
                line = self.lines.get(timeout=self.longest)
            except queue.Empty:
                self.process.kill()
                self.problem = f"no answer in {self.longest:.0f} s"
                return
            if line is None:
                code = self.process.wait()
                self.problem = f"its process ended with {code}: {(self.said or [''])[-1][:200]}"
                return
            reply = json.loads(line)
            yield Reply(reply["seconds"], reply["problem"])

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
