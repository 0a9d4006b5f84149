"""Run cases in a child process: JSON lines in and out, with enforced limits."""

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
PATIENCE = 240.0  # seconds without a message after which a process counts as hanging
GLANCE = 0.25  # seconds between two checks of its memory


class ProcessLost(StackError):
    """Raised if a child process ended, does not answer, or cannot continue.

    `at` is its last progress message. While it runs a system, that has the system's name (under
    "at"), its kind, and if it is ours; {} if there was no message.
    """

    def __init__(self, why: str, at: Mapping[str, Any]) -> None:
        super().__init__(f"{why} at {at['at']}" if at else why)
        self.at = at


class Worker:
    """A child process that runs cases.

    Args:
        module: started as `python -m module`.
        environment: replaces this process's.
        patience: seconds without a message after which it is killed.
        memory: bytes of resident memory above which it is killed; None for no limit.
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
        self.why = ""  # reason, if we killed it
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # JAX never returns memory: leave most of the device to torch
            env={**JAX_SHARE, **(environment or os.environ)},
            start_new_session=True,  # its children end with it
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        if memory is not None:
            threading.Thread(target=self._watch, args=(memory,), daemon=True).start()

    @functools.cached_property
    def device(self) -> str:
        """A description of the device: its first message."""
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
        """Returns the next message of the process.

        Raises ProcessLost if the process ends, or if no message comes for `patience` seconds.
        """
        try:
            line = self.lines.get(timeout=self.patience)
        except queue.Empty:
            self.kill()
            raise ProcessLost(f"no message for {self.patience:.0f} seconds", self.at) from None
        if not line:
            code = self.process.wait()
            last = next((e for e in reversed(self.errors) if e), "no message")
            raise ProcessLost(self.why or f"the process ended with {code} ({last[:200]})", self.at)
        return json.loads(line)

    def tell(self, request: dict[str, Any]) -> None:
        """Sends a request; raises ProcessLost if the process does not accept any."""
        assert self.device
        assert self.process.stdin is not None
        self.at = {}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise ProcessLost(f"the process does not accept requests: {error}", self.at) from error

    def answer(self) -> dict[str, Any]:
        """Returns the reply to a request; reports the progress messages before it.

        Raises ProcessLost if the process ends or cannot continue, or StackError if only the
        requested case cannot be run.
        """
        while True:
            message = self.listen()
            if "at" in message:
                self.at = message
            elif "note" in message:
                self.say(str(message["note"]))
            elif "failed" in message:
                if message["lost"]:
                    raise ProcessLost(str(message["failed"]), self.at)
                raise StackError(str(message["failed"]))
            else:
                return message

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the reply. Raises as `answer`."""
        self.tell(request)
        return self.answer()["done"]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kills the process and its children."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def close(self, patience: float = 20) -> None:
        """Closes the input of the process, so that it ends; kills it after `patience` seconds."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.kill()


def _resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes, or 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
