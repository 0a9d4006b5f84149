"""The figures of one architecture, and their limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Arrays = Mapping[str, np.ndarray]

TINY = 8 * 2.0**-23  # of the largest exact element: eager happens to be exact in some results
UPDATE = 2e-5  # of the distance that a parameter went, as for TINY
WHOLE = 2e-6  # of the distance that all went: for gradients that are zero but for rounding
EPS = 2.0**-23
ANOTHER_WAY = 100  # times the median distance of eager's runs: one that took another branch


class Absent(ImportError):
    """A library, or a model in this release of it, is not installed."""


class Untraced(RuntimeError):
    """Torch does not trace a program in parts either, whatever compiles them."""


@dataclass
class Report:
    """The outcome of one architecture.

    Attributes:
        skipped: why it was not checked: what is not installed.
        failed: where it ended (`build`, `eager`, `capture`, `call`, `train`), and the first line of
            the exception.
        ops, native: ops of the forward pass, and those that were compiled.
        parts: graphs of the forward pass: more than 1 where Dynamo does not trace all of it.
        train_ops, train_native, graphs: the same of the training step, in that many graphs.
        fallback: ops left to the framework in either, with their numbers.
        error, eager_error, limit: largest distances from the results of an f64 run.
        train_error: the largest distance, over parameters and buffers, from three steps in f64, as
            a share of what is allowed; `worst` is its name. Of several runs, the median.
        starts, leaving: compiled training runs, and those of them that are further off.
        seconds, train_seconds: of the first call and of the first training step, compilation
            included.
        cpu: CPU seconds of the first call, in all threads: they depend less on other load.
    """

    name: str
    skipped: str = ""
    failed: str = ""
    captured: bool = False
    ops: int = 0
    native: int = 0
    parts: int = 0
    graphs: int = 0
    train_ops: int = 0
    train_native: int = 0
    fallback: dict[str, int] = field(default_factory=dict)
    error: float = float("nan")
    eager_error: float = float("nan")
    limit: float = float("nan")
    right: bool = False
    train_error: float = float("nan")
    worst: str = ""
    starts: int = 0
    leaving: int = 0
    trained: bool = False
    seconds: float = float("nan")
    train_seconds: float = float("nan")
    cpu: float = float("nan")

    @property
    def fully_native(self) -> bool:
        """True if nothing was left to the framework or a library, in training neither."""
        return self.captured and self.native == self.ops and self.train_native == self.train_ops

    @property
    def ok(self) -> bool:
        """True if results and training steps are right and no op falls back."""
        return self.right and self.trained and not self.fallback

    def as_dict(self) -> dict[str, object]:
        """All figures, for a file."""
        return dataclasses.asdict(self) | {"fully_native": self.fully_native, "ok": self.ok}

    def compare_results(self, exact: Arrays, eager: Sequence[Arrays], found: Arrays) -> None:
        """Hold results to twice eager's error, from weights that differ by rounding. Integers have
        to be equal."""
        self.error = self.eager_error = 0.0
        self.limit, self.right = 0.0, alike(eager[0], found)
        if not self.right:
            return
        for key, truth in exact.items():
            mine = _distance(found[key], truth)
            theirs = _usual([_distance(run[key], truth) for run in eager])
            limit = 2 * theirs + TINY * _largest(truth) if _is_float(truth) else 0.0
            self.right &= bool(mine <= limit)
            if not mine <= self.error:
                self.error, self.eager_error, self.limit = mine, theirs, limit

    def compare_training(
        self, start: Arrays, exact: Arrays, eager: Sequence[Arrays], found: Sequence[Arrays]
    ) -> None:
        """Hold parameters and buffers after the steps to twice eager's error.

        That is the largest of several runs, which start from weights that differ by rounding: one
        run of a network that amplifies rounding has a small error by chance. A value that is zero
        but for rounding takes either side of a relu's kink, in eager too, and all that follows
        goes another way from there. So where the first compiled run is further off, most of
        several have to be right; what is wrong is wrong from all starts.
        """
        self.train_error, self.worst, self.trained = 0.0, "", False
        self.starts, self.leaving = len(found), 0
        if not all(alike(eager[0], run) for run in found):
            self.worst = "types or shapes differ"
            return
        moved = {k: _norm(exact[k] - start[k]) for k in exact if _is_float(exact[k])}
        every = sum(d * d for d in moved.values()) ** 0.5
        if not 0 < every < float("inf"):
            self.worst = "no parameter moved" if every == 0 else "training in f64 is not finite"
            return
        allowed = {
            key: 2 * _usual([_norm(run[key] - exact[key]) for run in eager])
            + (UPDATE * moved[key] + WHOLE * every + EPS * _norm(exact[key]))
            for key in moved
        }
        shares = sorted(_furthest(run, exact, eager[0], allowed) for run in found)
        self.leaving = sum(not share <= 1 for share, _ in shares)
        self.train_error, self.worst = shares[len(shares) // 2]
        self.trained = self.leaving <= (len(found) - 1) // 2


def _furthest(
    found: Arrays, exact: Arrays, eager: Arrays, allowed: Mapping[str, float]
) -> tuple[float, str]:
    """The largest distance as a share of what is allowed, and where. Integers have to be equal."""
    worst = 0.0, ""
    for key, truth in exact.items():
        if key in allowed:
            distance = _norm(found[key] - truth)
            share = distance / allowed[key] if distance == distance else float("inf")
        else:
            share = 0.0 if np.array_equal(found[key], eager[key]) else float("inf")
        worst = max(worst, (share, key))
    return worst


def _usual(distances: Sequence[float]) -> float:
    """The largest of several, but for those that went another way than most."""
    middle = sorted(distances)[len(distances) // 2]
    return max((d for d in distances if not d > ANOTHER_WAY * middle), default=middle)


def alike(eager: Arrays, found: Arrays) -> bool:
    """True if both have the same keys, types and shapes."""
    return eager.keys() == found.keys() and all(
        a.dtype == found[k].dtype and a.shape == found[k].shape for k, a in eager.items()
    )


def _is_float(a: np.ndarray) -> bool:
    return a.dtype.kind in "fc"


def _norm(a: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(a, np.float64).ravel()))


def _distance(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest distance of elements; 0 for infinities of one sign."""
    if not exact.size:
        return 0.0
    found, exact = found.astype(np.float64), exact.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.where(found == exact, 0.0, np.abs(found - exact)).max())


def _largest(a: np.ndarray) -> float:
    finite = np.abs(a[np.isfinite(a)])
    return float(finite.max()) if finite.size else 0.0
