"""Devices and their links, as data: each number with its source.

Links come in tiers. The first connects neighbours by number, such as the GPUs of a host; the last
connects all ranks. A message of b bytes takes alpha + b / rate (Hockney, "The communication
challenge for MPP", 1994).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import UsageError, unknown_name
from stack.target import load
from stack.target.record import Gpu

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Link:
    """One tier of a network.

    Attributes:
        alpha: latency of a message in seconds.
        beta: seconds per byte of a rank's port, in each direction.
        ranks: number of neighbours that it connects; 0 for all.
    """

    alpha: float
    beta: float
    ranks: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0:
            raise UsageError(f"a link has alpha, beta >= 0, not {self.alpha}, {self.beta}")


@dataclass(frozen=True)
class Cluster:
    """Many devices of one kind.

    Attributes:
        target: the device's name in `stack.target`; "" if it has no entry there.
        bf16_rate, f32_rate: datasheet flop/s; matmuls reach `share` of them.
        memory_rate: bytes per second of memory; `memory_bytes` is its size.
        launch: overhead of a kernel in seconds.
        links: tiers, the nearest first.
        sustained: share of a lone matmul's rate that matmuls reach for seconds, when a limit of
            power lowers the clock.
        memory_share: share of `memory_rate` that kernels reach.
        beside: time of computation beside a collective in flight, relative to that alone.
        gradient_share: share of `bf16_rate` that the gradients of attention reach.
        sources: the source and date of each number.
    """

    name: str
    title: str
    bf16_rate: float
    f32_rate: float
    memory_rate: float
    memory_bytes: float
    share: float
    launch: float
    links: tuple[Link, ...]
    target: str = ""
    sustained: float = 1.0
    memory_share: float = 1.0
    beside: float = 1.0
    gradient_share: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)

    def rate(self, dtype: str) -> float:
        """Returns the flop/s that good matmul kernels reach for seconds with these elements."""
        peak = self.bf16_rate if dtype in ("bf16", "f16") else self.f32_rate
        return self.share * self.sustained * peak

    @property
    def traffic_rate(self) -> float:
        """Bytes per second that kernels read and write."""
        return self.memory_share * self.memory_rate

    @property
    def balance(self) -> float:
        """16-bit flops that a device computes in the time of sending one byte to a neighbour."""
        return self.rate("bf16") * self.links[0].beta

    @property
    def gpu(self) -> Gpu | None:
        """The GPU record that `target` names; None if `target` is "" or names a CPU.

        Raises UsageError if there is no such target.
        """
        found = load(self.target) if self.target else None
        return found if isinstance(found, Gpu) else None

    @property
    def stream_balance(self) -> float:
        """Flops of an attention-like kernel in the time of reading one byte of device memory; 0 if
        the device's numbers are unknown.
        """
        return self.gpu.balance if self.gpu is not None else 0.0

    def calibrated(self, times: Mapping[int, float], tier: int = 0) -> Cluster:
        """Returns a copy of this cluster in which the latency and bandwidth of network tier `tier`
        are fitted to `times`, measured seconds by message size in bytes.
        """
        found = fitted(times)
        old = self.links[tier]
        link = replace(old, alpha=found.alpha, beta=found.beta)
        return replace(self, links=(*self.links[:tier], link, *self.links[tier + 1 :]))


def names() -> list[str]:
    """Returns the names of the known machines."""
    return sorted(path.stem for path in DATA.glob("*.toml"))


def machine(name: str) -> Cluster:
    """Loads a machine by name. Raises UsageError with the known names."""
    if name not in names():
        raise unknown_name("no machine", name, names())
    held: dict[str, Any] = tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))
    numbers: dict[str, Any] = held["numbers"]
    sources = {key: str(value["source"]) for key, value in numbers.items()}
    links: list[Link] = []
    for tier in held["links"]:
        sources |= {f"{tier['name']}: {key}": tier[key]["source"] for key in ("rate", "alpha")}
        rate, alpha = float(tier["rate"]["value"]), float(tier["alpha"]["value"])
        links.append(Link(alpha, 1 / rate, int(tier["ranks"]), str(tier["name"])))
    values = {key: float(value["value"]) for key, value in numbers.items()}
    title, target = str(held["title"]), str(held["target"])
    return Cluster(name, title, links=tuple(links), target=target, sources=sources, **values)


def fitted(times: Mapping[int, float]) -> Link:
    """Fits latency and bandwidth of a network link to `times`, seconds by message size in bytes,
    with least relative error.

    Raises UsageError for fewer than two sizes.
    """
    if len(times) < 2:
        raise UsageError(f"a fit needs at least two sizes, not {len(times)}")
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    terms = np.stack([np.ones(len(sizes)), sizes], axis=1) / seconds[:, None]
    alpha, beta = _least_squares(terms, np.ones(len(sizes)))
    return Link(alpha, beta)


def _least_squares(terms: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Returns the two nonnegative coefficients of the columns of `terms` whose sum is closest to
    `wanted` (least squares).
    """
    both = np.linalg.lstsq(terms, wanted, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = [float(column @ wanted / (column @ column)) for column in terms.T]
    errors = [float(np.square(c * t - wanted).sum()) for c, t in zip(alone, terms.T, strict=True)]
    return (alone[0], 0.0) if errors[0] < errors[1] else (0.0, alone[1])
