"""The type of a schedule, its text, and the domain of axes that it divides.

    m=128+64@grid n=256+128@grid k=64@serial warps=8 stages=3 persistent

Splits stand from the outermost loop to the innermost. `m=128@grid` gives each program a block of
128 along m; `m=128+64` takes blocks of 64 for what is left of whole rounds of the processors, its
tail. An axis that is split again has another entry, with a block that divides the one before it:
`m=128@grid m=16@warp`. A word in place of all this names another way: `library`, or `batch`, a
kernel for each product of a group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stack.errors import UsageError

BINDINGS = ("grid", "warp", "lane", "vector", "serial", "unroll")
WORDS = ("library", "unfused")
KINDS = ("parallel", "reduction", "stream")
_SPLIT = re.compile(r"(\w+)=(\d+)(?:\+(\d+))?(?:@(\w+))?")


@dataclass(frozen=True)
class Split:
    """Blocks of one axis, and what runs them.

    Attributes:
        axis: its name in the domain.
        block: elements of a block.
        binding: one of `BINDINGS`; "" leaves it to the policy.
        tail: elements of the smaller blocks at the end; 0 where there are none.
    """

    axis: str
    block: int
    binding: str = ""
    tail: int = 0

    def __str__(self) -> str:
        tail = f"+{self.tail}" if self.tail else ""
        return f"{self.axis}={self.block}{tail}" + (f"@{self.binding}" if self.binding else "")


@dataclass(frozen=True)
class Schedule:
    """How a kernel computes its domain.

    Attributes:
        splits: of its axes, outermost first.
        warps: that share a program; 0 leaves it to the policy.
        stages: steps of its loops whose operands are held at a time; 0 likewise.
        persistent: as many programs as processors take blocks in turn, so that the end of one
            overlaps the start of the next.
        instead: one of `WORDS`, for a group that no such kernel computes.
    """

    splits: tuple[Split, ...] = ()
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
        """The schedule that `str` wrote; entries may be divided by commas too.

        Raises:
            UsageError: naming the entry that cannot be read.
        """
        words = text.replace(",", " ").split()
        if len(words) == 1 and words[0] in WORDS:
            return Schedule(instead=words[0])
        splits: list[Split] = []
        options: dict[str, int] = {}
        persistent = False
        for word in words:
            match = _SPLIT.fullmatch(word)
            if word == "persistent":
                persistent = True
            elif match is None:
                raise _unreadable(text, word)
            elif match[1] in ("warps", "stages"):
                if match[3] or match[4] or match[1] in options or not int(match[2]):
                    raise _unreadable(text, word)
                options[match[1]] = int(match[2])
            elif match[4] and match[4] not in BINDINGS:
                raise UsageError(
                    f"schedule {text!r}: {word!r} binds axis {match[1]} to {match[4]!r}, which is"
                    f" none of {', '.join(BINDINGS)}"
                )
            else:
                splits.append(Split(match[1], int(match[2]), match[4] or "", int(match[3] or 0)))
        if not words:
            raise _unreadable(text, "")
        return Schedule(
            tuple(splits), options.get("warps", 0), options.get("stages", 0), persistent
        )

    def of(self, axis: str) -> tuple[Split, ...]:
        """The splits of one axis, outermost first."""
        return tuple(s for s in self.splits if s.axis == axis)

    def bound(self, *bindings: str) -> tuple[Split, ...]:
        """The splits of some bindings, outermost first."""
        return tuple(s for s in self.splits if s.binding in bindings)

    @property
    def is_by_threads(self) -> bool:
        """Whether it says what single threads compute of a product."""
        return bool(self.bound("lane", "unroll"))

    def block(self, axis: str, default: int = 0) -> int:
        """The outermost block of an axis; `default` where it is not split."""
        found = self.of(axis)
        return found[0].block if found else default

    def tail(self, axis: str) -> int:
        """The smaller blocks at the end of an axis; 0 where there are none."""
        return max((s.tail for s in self.of(axis)), default=0)

    def filled(self, default: Schedule) -> Schedule:
        """This schedule, with what it leaves open as `default` has it.

        The axes that it names keep their order among themselves; programs are outermost.
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


def _axis(split: Split) -> str:
    return split.axis


def _bound(own: Sequence[Split], usual: Sequence[Split]) -> Sequence[Split]:
    """The splits of an axis, bound as they usually are; the usual ones where it has none."""
    if not own or not usual:
        return own or usual
    last = len(usual) - 1
    return [
        s if s.binding else replace(s, binding=usual[min(i, last)].binding)
        for i, s in enumerate(own)
    ]


def _unreadable(text: str, word: str) -> UsageError:
    return UsageError(
        f"schedule {text!r}: cannot read {word!r}; write blocks of axes and options, as in"
        " 'm=128@grid n=256@grid k=64@serial warps=8 stages=3 persistent', or one of"
        f" {', '.join(WORDS)}"
    )


@dataclass(frozen=True)
class Axis:
    """One axis of a domain.

    Attributes:
        name: in schedules.
        extent: its elements.
        kind: one of `KINDS`.
        whole: why programs cannot divide it; "" where partial results combine to the whole.
    """

    name: str
    extent: int
    kind: str
    whole: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.extent}, {self.kind})"


@dataclass(frozen=True)
class Domain:
    """The points that a group computes: its axes, outermost first."""

    axes: tuple[Axis, ...]

    def axis(self, name: str) -> Axis | None:
        """The axis of a name, if there is one."""
        return next((a for a in self.axes if a.name == name), None)

    def __str__(self) -> str:
        return ", ".join(map(str, self.axes))


@dataclass(frozen=True)
class Prediction:
    """What a model expects of a schedule.

    Attributes:
        seconds: of the kernel, its launch included.
        parts: seconds of what overlaps in it, by name: "tensor", "memory", "cache".
    """

    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def bound(self) -> str:
        """The part that takes longest; "" where only the sum is known."""
        return max(self.parts, key=lambda p: self.parts[p], default="")

    def __str__(self) -> str:
        return f"{self.seconds * 1e6:.1f} us"

    def told(self) -> str:
        """The time with its parts, longest first."""
        parts = sorted(self.parts.items(), key=lambda p: -p[1])
        shown = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in parts)
        return f"{self} ({shown})" if shown else str(self)
