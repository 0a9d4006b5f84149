"""Caches values that a program computes from its weights, until a weight changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.run.backend import FrozenValues
from stack.run.frontend import Frontend

Stamps = tuple[Hashable, ...]  # memory of weights, or their versions


@dataclass(frozen=True)
class Entry:
    """Values that were computed from one set of weights and are reused while these do not change.

    Attributes:
        versions: versions of the weights at that time.
        values: the cached values.
        addresses: addresses of the values, valid while the entry exists.
        is_there: for each weight a function that is True while its memory is alive.
    """

    versions: Stamps
    values: list[np.ndarray]
    addresses: list[int]
    is_there: list[Callable[[], bool]]


class WeightCache:
    """The results of `FrozenValues.prepare`, one set for each live set of weights.

    Equal layers may share a program; each has its own values. Thread-safe.

    Attributes:
        count: number of times that values were computed.
    """

    def __init__(self, frozen: FrozenValues, frontend: Frontend) -> None:
        self.frozen, self.frontend = frozen, frontend
        self.count = 0
        self._entries: dict[Stamps, Entry] = {}
        self._lock = threading.Lock()

    def values(self, arrays: Sequence[Any], storage: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The values for the current weights, computed if necessary.

        Args:
            arrays: framework arrays for all parameters.
            storage: the same arrays as `FrozenValues.prepare` takes them.
        """
        weights = [arrays[i] for i in self.frozen.weights]
        with self._lock:
            key, versions = self._stamps(weights)
            entry = self._current(key, versions)
            if entry is None:
                entry = self._make(key, versions, weights, storage)
        return entry.values

    def found(self, arrays: Sequence[Any]) -> Entry | None:
        """The cached values for the weights among `arrays`; None if no values are cached for these
        weights, or if a weight may have changed since.
        """
        with self._lock:
            return self._current(*self._stamps([arrays[i] for i in self.frozen.weights]))

    def _stamps(self, weights: Sequence[Any]) -> tuple[Stamps, Stamps]:
        """Returns a key of each weight's memory, and each weight's version number, by which writes
        to it are detected.
        """
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
        """The size of the cached values and how often they were computed, in words."""
        sets = (
            f" for each of {len(self._entries)} sets of weights" if len(self._entries) > 1 else ""
        )
        return (
            f"{self.frozen.bytes} bytes computed from {len(self.frozen.weights)} weights are cached"
            f"{sets}; computed {self.count} times"
        )
