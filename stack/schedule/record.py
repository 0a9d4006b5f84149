"""Schedules: their type, their text, and the domain of axes that they split.

    m=128+64@grid n=256+128@grid k=64@serial warps=8 stages=3 persistent

Splits are listed from the outermost loop to the innermost. `m=128@grid` gives each program a block
of 128 along m. `m=128+64` uses smaller blocks of 64 (the tail) for the elements after the last full
wave of programs. An axis that is split again has another entry, whose block divides the one before:
`m=128@grid m=16@warp`. A single word names an alternative: `library`, a library call, or `unfused`,
separate kernels for the parts of the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stack.errors import UsageError

BINDINGS = ("grid", "warp", "lane", "vector", "serial", "unroll")
WORDS = ("library", "unfused")
KINDS = ("parallel", "reduction", "stream")
_SPLIT = re.compile(r"(\w+)=([0-9]{1,18})(?:\+([0-9]{1,18}))?(?:@(\w+))?")


@dataclass(frozen=True)
class AxisSplit:
    """A split of one axis into blocks, and what runs them."""

    axis: str  # its name in the domain
    block: int  # elements of a block
    binding: str = ""  # one of `BINDINGS`; "" leaves it to the policy
    tail: int = 0  # elements of the smaller blocks at the end; 0 if there are none

    def __str__(self) -> str:
        tail = f"+{self.tail}" if self.tail else ""
        return f"{self.axis}={self.block}{tail}" + (f"@{self.binding}" if self.binding else "")


@dataclass(frozen=True)
class Schedule:
    """The schedule of a kernel on its domain.

    Attributes:
        splits: splits of its axes, outermost first.
        warps: number of warps of a program; 0 leaves it to the policy.
        stages: pipeline stages: the number of iterations whose operands are in memory at a time; 0
            leaves it to the policy.
        persistent: one program per processor loops over several blocks, so that the end of one
            block overlaps the start of the next.
        instead: one of `WORDS`, for a group that another implementation computes.
    """

    splits: tuple[AxisSplit, ...] = ()
    warps: int = 0
    stages: int = 0
    persistent: bool = False
    instead: str = ""

    def __str__(self) -> str:
        if self.instead:
            return self.instead
        options = {"warps": self.warps, "stages": self.stages}
        words = [*map(str, self.splits), *(f"{k}={v}" for k, v in options.items() if v)]
        return " ".join([*words, "persistent"] if self.persistent else words)

    @staticmethod
    def parse(text: str) -> Schedule:
        """Parses the text that `str` returns; commas may separate entries too.

        Raises:
            UsageError: names the entry that cannot be parsed.
        """
        words = text.replace(",", " ").split()
        if len(words) == 1 and words[0] in WORDS:
            return Schedule(instead=words[0])
        splits: list[AxisSplit] = []
        options: dict[str, int] = {}
        persistent = False
        for word in words:
            match = _SPLIT.fullmatch(word)
            if word == "persistent":
                persistent = True
            elif match is None:
                raise unreadable(text, word)
            elif match[1] in ("warps", "stages"):
                if match[3] or match[4] or match[1] in options or not int(match[2]):
                    raise unreadable(text, word)
                options[match[1]] = int(match[2])
            elif match[4] and match[4] not in BINDINGS:
                raise UsageError(
                    f"schedule {text!r}: {word!r} binds axis {match[1]} to {match[4]!r}, which is"
                    f" none of {', '.join(BINDINGS)}"
                )
            else:
                splits.append(
                    AxisSplit(match[1], int(match[2]), match[4] or "", int(match[3] or 0))
                )
        if not words:
            raise unreadable(text, "")
        return Schedule(
            tuple(splits), options.get("warps", 0), options.get("stages", 0), persistent
        )

    def of(self, axis: str) -> tuple[AxisSplit, ...]:
        """The splits of the axis with this name, outermost first; empty if the schedule does not
        split it.
        """
        return tuple(s for s in self.splits if s.axis == axis)

    def bound(self, *bindings: str) -> tuple[AxisSplit, ...]:
        """The splits of all axes whose binding, such as "grid", is one of `bindings`; outermost
        first.
        """
        return tuple(s for s in self.splits if s.binding in bindings)

    @property
    def is_by_threads(self) -> bool:
        """True if splits are bound to lanes or unrolled, which specifies the elements of a matmul
        that each thread computes.
        """
        return bool(self.bound("lane", "unroll"))

    def block(self, axis: str, default: int = 0) -> int:
        """The number of elements in an outermost block of an axis; `default` if the schedule does
        not split it.
        """
        found = self.of(axis)
        return found[0].block if found else default

    def tail(self, axis: str) -> int:
        """The number of elements of the smaller blocks at the end of an axis; 0 if all its blocks
        have one size.
        """
        return max((s.tail for s in self.of(axis)), default=0)

    def filled(self, default: Schedule) -> Schedule:
        """Returns this schedule with everything that it does not specify (axes, bindings, warps,
        stages) taken from `default`.

        The axes that it names keep their relative order; splits bound to the grid are outermost.
        """
        own = iter(dict.fromkeys(s.axis for s in self.splits))
        named = {s.axis for s in self.splits}
        axes = [next(own) if a in named else a for a in dict.fromkeys(map(_axis, default.splits))]
        splits = [s for a in (*axes, *own) for s in _bound(self.of(a), default.of(a))]
        return replace(
            self,
            splits=tuple(sorted(splits, key=lambda s: s.binding != "grid")),
            warps=self.warps or default.warps,
            stages=self.stages or default.stages,
        )


def _axis(split: AxisSplit) -> str:
    return split.axis


def _bound(own: Sequence[AxisSplit], usual: Sequence[AxisSplit]) -> Sequence[AxisSplit]:
    """Completes the splits of one axis: a split without a binding gets that of the default split at
    the same depth. Returns the default splits if the axis is not split.
    """
    if not own or not usual:
        return own or usual
    last = len(usual) - 1
    return [
        s if s.binding else replace(s, binding=usual[min(i, last)].binding)
        for i, s in enumerate(own)
    ]


def unreadable(text: str, word: str) -> UsageError:
    """The error of a text with a word that is no schedule; it says what one looks like."""
    return UsageError(
        f"schedule {text!r}: cannot read {word!r}; write blocks of axes and options, as in"
        " 'm=128@grid n=256@grid k=64@serial warps=8 stages=3 persistent', steps with their"
        f" operands, as in 'split m 8; unroll m.1', or one of {', '.join(WORDS)}"
    )


@dataclass(frozen=True)
class Axis:
    """One axis of a domain, and its blocks in a schedule."""

    name: str  # in schedules
    extent: int  # number of elements
    kind: str  # one of `KINDS`
    bindings: tuple[str, ...] = ()  # that its splits may have, outermost first
    whole: str = ""  # why programs cannot split it; "" if partial results can be combined
    unit: int = 1  # the smallest block of its first split
    most: int = 0  # the largest block; 0 for no limit
    is_free: bool = False  # whether blocks are any multiples of `unit`, not powers of two

    def __str__(self) -> str:
        return f"{self.name} ({self.extent}, {self.kind})"


@dataclass(frozen=True)
class Domain:
    """The iteration space of a group, and the schedules that its kernel allows."""

    axes: tuple[Axis, ...] = ()  # outermost first
    options: tuple[str, ...] = ("warps", "stages")  # that a schedule may have
    words: tuple[str, ...] = ()  # allowed values of `Schedule.instead`
    ordered: bool = False  # whether programs are numbered along the axes in the order of the domain
    tails: bool = True  # whether programs at the end of an axis may have smaller blocks

    @property
    def is_empty(self) -> bool:
        """True if a schedule has nothing to choose."""
        return not (self.axes or self.options)

    def axis(self, name: str) -> Axis | None:
        """The axis with this name; None if there is none."""
        return next((a for a in self.axes if a.name == name), None)

    def __str__(self) -> str:
        return ", ".join(map(str, self.axes))


@dataclass(frozen=True)
class Prediction:
    """A cost model's prediction for a schedule."""

    seconds: float  # of the kernel, its launch included
    # seconds of the parts that overlap, by name: "tensor", "memory", "cache"
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        return f"{self.seconds * 1e6:.1f} us"

    def told(self) -> str:
        """The predicted time as text, followed by the time of each part in microseconds, longest
        first.
        """
        parts = sorted(self.parts.items(), key=lambda p: -p[1])
        shown = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in parts)
        return f"{self} ({shown})" if shown else str(self)
