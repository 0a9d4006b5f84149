"""What a program has made of its weights, kept from call to call until one of them changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.run.backend import Frozen
from stack.run.frontend import Frontend

Stamps = tuple[Hashable, ...]  # where weights are, or their versions


@dataclass(frozen=True)
class Entry:
    """What was made of one set of weights.

    Attributes:
        versions: of the weights then.
        values: what was made of them.
        addresses: of the values, which stay while the entry is held.
        is_there: for each weight, whether somebody still has its memory.
    """

    versions: Stamps
    values: list[np.ndarray]
    addresses: list[int]
    is_there: list[Callable[[], bool]]


class Kept:
    """The values of `Frozen.prepare`, one set for each set of weights that is alive.

    Layers that are alike may share a program: each has its own values. Threads may ask at once.

    Attributes:
        count: how often values were made.
    """

    def __init__(self, frozen: Frozen, frontend: Frontend) -> None:
        self.frozen, self.frontend = frozen, frontend
        self.count = 0
        self._entries: dict[Stamps, Entry] = {}
        self._lock = threading.Lock()

    def values(self, arrays: Sequence[Any], storage: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What is made of the weights as they are now.

        Args:
            arrays: the framework's, for all parameters that are weights.
            storage: the same arrays as `Frozen.prepare` takes them.
        """
        weights = [arrays[i] for i in self.frozen.weights]
        with self._lock:
            key, versions = self._stamps(weights)
            entry = self._current(key, versions)
            if entry is None:
                entry = self._make(key, versions, weights, storage)
        return entry.values

    def found(self, arrays: Sequence[Any]) -> Entry | None:
        """What is there of the weights as they are now; None where it has to be made."""
        with self._lock:
            return self._current(*self._stamps([arrays[i] for i in self.frozen.weights]))

    def _stamps(self, weights: Sequence[Any]) -> tuple[Stamps, Stamps]:
        """Where weights are, and their versions."""
        stamps = list(map(self.frontend.stamp, weights))
        return tuple(memory for memory, _ in stamps), tuple(version for _, version in stamps)

    def _current(self, key: Stamps, versions: Stamps) -> Entry | None:
        entry = self._entries.get(key)
        is_known = entry is not None and entry.versions == versions and None not in versions
        return entry if is_known else None

    def _make(
        self,
        key: Stamps,
        versions: Stamps,
        weights: Sequence[Any],
        storage: Sequence[np.ndarray],
    ) -> Entry:
        self._entries = {
            k: e for k, e in self._entries.items() if all(there() for there in e.is_there)
        }
        is_there = list(map(self.frontend.watch, weights))
        values = self.frozen.prepare(storage)
        entry = Entry(versions, values, [v.ctypes.data for v in values], is_there)
        self._entries[key] = entry
        self.count += 1
        return entry

    @property
    def note(self) -> str:
        """How much is kept, and how often it was made, in words."""
        sets = (
            f" for each of {len(self._entries)} sets of weights" if len(self._entries) > 1 else ""
        )
        return (
            f"{self.frozen.bytes} bytes made of {len(self.frozen.weights)} weights are kept beside"
            f" them{sets}; made {self.count} times"
        )
