"""A process that runs cases: JSON lines in and out, and limits that it cannot break."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.measure.systems import Say

JAX_SHARE = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4",
}
PATIENCE = 240.0  # seconds without a word after which a process hangs
GLANCE = 0.25  # seconds between two looks at its memory


class Lost(StackError):
    """A process ended, or does not answer. `at` says what it was about to do: for a system its name
    (under "at"), its kind, and whether it is ours."""

    def __init__(self, why: str, at: Mapping[str, Any]) -> None:
        super().__init__(f"{why} at {at['at']}" if at else why)
        self.at = at


class Worker:
    """A process that runs cases.

    Args:
        module: what it is: `python -m module`.
        environment: in place of this process's.
        patience: seconds without a word after which it is ended.
        memory: bytes of its own beyond which it is ended; None does not look.
    """

    def __init__(
        self,
        say: Say,
        environment: Mapping[str, str] | None = None,
        module: str = "stack.measure.gpu_worker",
        patience: float = PATIENCE,
        memory: int | None = None,
    ) -> None:
        self.say = say
        self.at: dict[str, Any] = {}
        self.patience = patience
        self.why = ""  # it was ended by us
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # JAX keeps what it once took: it shall leave most of the device to torch
            env={**JAX_SHARE, **(environment or os.environ)},
            start_new_session=True,  # what it starts ends with it
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        if memory is not None:
            threading.Thread(target=self._watch, args=(memory,), daemon=True).start()

    @functools.cached_property
    def device(self) -> str:
        """The device in words: the first thing that it says."""
        return str(self.listen()["device"])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.strip()]

    def _watch(self, memory: int) -> None:
        while self.process.poll() is None:
            if _resident(self.process.pid) > memory:
                self.why = f"took more than {memory / 2**30:.0f} GiB"
                self.kill()
                return
            time.sleep(GLANCE)

    def listen(self) -> dict[str, Any]:
        """The next message. Raises Lost."""
        try:
            line = self.lines.get(timeout=self.patience)
        except queue.Empty:
            self.kill()
            raise Lost(f"no word for {self.patience:.0f} seconds", self.at) from None
        if not line:
            code = self.process.wait()
            last = next((e for e in reversed(self.errors) if e), "no message")
            raise Lost(self.why or f"the process ended with {code} ({last[:200]})", self.at)
        return json.loads(line)

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request. Raises Lost."""
        assert self.device
        assert self.process.stdin is not None
        self.at = {}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Lost(f"the process does not listen: {error}", self.at) from error

    def answer(self) -> dict[str, Any]:
        """The next message that is not about what the process is doing.

        Raises Lost, or StackError for a case that cannot be run.
        """
        while True:
            message = self.listen()
            if "at" in message:
                self.at = message
            elif "note" in message:
                self.say(str(message["note"]))
            elif "failed" in message:
                if message["lost"]:
                    raise Lost(str(message["failed"]), self.at)
                raise StackError(str(message["failed"]))
            else:
                return message

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request. Raises as `answer`."""
        self.tell(request)
        return self.answer()["done"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End the process and what it started."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def close(self, patience: float = 20) -> None:
        """End the process, after so many seconds by force."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.kill()


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
