"""The interface between pipeline and pass: fuel and target in; rewrites, near matches and groups
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stack.ir.node import Block, Node
from stack.ir.printer import print_node
from stack.rewrite.check import EXACT, Inexact
from stack.rewrite.verdict import Reason
from stack.schedule import ScheduleChoice
from stack.target import Cpu, Gpu, Target, as_cpu, as_gpu

Lines = tuple[str, ...]


@dataclass(frozen=True)
class Rewrite:
    """One application of a rule: the source lines of the match and the replaced value."""

    rule: str
    source: Lines
    node: str = ""


@dataclass(frozen=True)
class Miss:
    """A near match of a rule, and the reason why it was not applied."""

    rule: str
    reason: str
    node: str
    source: Lines


@dataclass(frozen=True)
class FormedGroup:
    """A group that fusion made."""

    name: str
    kind: str
    ops: tuple[str, ...]
    source: Lines
    saved: int = 0  # bytes of memory traffic saved, 0 for symbolic sizes


@dataclass(frozen=True)
class RefusedFusion:
    """Two neighbouring groups that fusion did not join, with their source lines and the reason.
    `kind` is the reason in one word, one of `REASONS`.
    """

    producer: str
    consumer: str
    reason: str
    source: Lines
    kind: Reason = "rule"
    between: tuple[Lines, Lines] = ((), ())


@dataclass(frozen=True)
class Note:
    """A remark of a pass, and the source lines that it is about; () for the whole program."""

    text: str
    source: Lines = ()

    def __str__(self) -> str:
        return self.text


@dataclass
class Fuel:
    """The number of remaining rewrites; None for no limit. A whole pipeline shares it."""

    left: int | None = None


@dataclass
class Log:
    """The inputs of one pass besides the function, and its output notes.

    A pass calls `spend` before each rewrite and stops if it returns False. It takes numbers of the
    machine from `gpu` or `cpu`.
    """

    verbose: bool = False
    fuel: Fuel = field(default_factory=Fuel)
    target: Target | None = None  # None: the reference of its kind
    # schedules written by hand, by names of groups; for pass `schedule`
    schedules: Mapping[str, str] = field(default_factory=dict[str, str])
    rewrites: list[Rewrite] = field(default_factory=list[Rewrite])
    misses: list[Miss] = field(default_factory=list[Miss])
    formed: list[FormedGroup] = field(default_factory=list[FormedGroup])
    refused: list[RefusedFusion] = field(default_factory=list[RefusedFusion])
    notes: list[Note] = field(default_factory=list[Note])
    told: set[Note] = field(default_factory=set[Note], repr=False)
    missed: set[object] = field(default_factory=set[object], repr=False)
    on_kernel: Callable[[Node], object] | None = None  # called with each kernel once it is made
    choices: list[ScheduleChoice] = field(default_factory=list[ScheduleChoice])  # of schedules
    inexact: Inexact = EXACT  # how far the rules that were applied may change results

    @property
    def gpu(self) -> Gpu:
        """The GPU that the function is lowered for. Raises UsageError if the target is a CPU."""
        return as_gpu(self.target)

    @property
    def cpu(self) -> Cpu:
        """The CPU that the function is lowered for. Raises UsageError if the target is a GPU."""
        return as_cpu(self.target)

    def spend(self, rule: str, source: Lines = (), node: str = "") -> bool:
        """Returns True if one more rewrite is allowed, and records it with its value."""
        if self.fuel.left is not None:
            if self.fuel.left <= 0:
                return False
            self.fuel.left -= 1
        self.rewrites.append(Rewrite(rule, source, node))
        return True

    def allow(self, inexact: Inexact) -> None:
        """Records that the rewrites of this pass change results by up to `inexact`, by design."""
        self.inexact |= inexact

    def miss(self, rule: str, reason: str, node: Node, scope: Block) -> None:
        """Records a near match (verbose logs only)."""
        if self.verbose:
            if (rule, reason, node) in self.missed:
                return
            entry = Miss(rule, reason, print_node(node, scope), scope.locs.get(node, ()))
            if entry not in self.missed:
                self.misses.append(entry)
            self.missed.update(((rule, reason, node), entry))

    def note(self, text: str, source: Lines = ()) -> None:
        """Records free text, such as a decision and its reason; ignores repetitions."""
        found = Note(text, source)
        if found not in self.told:
            self.told.add(found)
            self.notes.append(found)

    def extend(self, other: Log) -> None:
        """Appends the records of another log; its fuel was spent there."""
        self.rewrites += other.rewrites
        self.misses += other.misses
        self.formed += other.formed
        self.refused += other.refused
        self.notes += other.notes
        self.choices += other.choices
        self.allow(other.inexact)

    @property
    def by_rule(self) -> Counter[str]:
        """Number of applications of each rule."""
        return Counter(r.rule for r in self.rewrites)
