"""What passes are told, fuel and target, and what they tell: rewrites, near matches, groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.ir.node import Block, Node
from stack.ir.printer import print_node
from stack.rewrite.verdict import Reason
from stack.schedule import Choice
from stack.target import Cpu, Gpu, Target, as_cpu, as_gpu

Lines = tuple[str, ...]


@dataclass(frozen=True)
class Rewrite:
    """One rule applied once: the source lines of the match, and the value that it replaced."""

    rule: str
    source: Lines
    node: str = ""


@dataclass(frozen=True)
class Miss:
    """A rule that nearly applied, and why it did not."""

    rule: str
    reason: str
    node: str
    source: Lines


@dataclass(frozen=True)
class Formed:
    """A group that fusion made."""

    name: str
    kind: str
    ops: tuple[str, ...]
    source: Lines
    saved: int = 0  # bytes that no longer travel through memory, 0 where sizes are symbolic


@dataclass(frozen=True)
class Refused:
    """Two neighbours that fusion kept apart: their source lines, and why, see `REASONS`."""

    producer: str
    consumer: str
    reason: str
    source: Lines
    kind: Reason = "rule"
    between: tuple[Lines, Lines] = ((), ())


@dataclass(frozen=True)
class Note:
    """Free text of a pass, and the source lines that it is about; () for the whole program."""

    text: str
    source: Lines = ()

    def __str__(self) -> str:
        return self.text


@dataclass
class Fuel:
    """How many rewrites may still happen; None for any number. Shared by a whole pipeline."""

    left: int | None = None

    def take(self) -> bool:
        """Use one unit; False when the tank is empty."""
        if self.left is None:
            return True
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass
class Log:
    """What one pass is told, and its notes.

    A pass asks `spend` before each rewrite and stops when it says no. What depends on a machine it
    takes from `gpu` or `cpu`.
    """

    verbose: bool = False
    fuel: Fuel = field(default_factory=Fuel)
    target: Target | None = None  # None: the reference of its kind
    # what a person wrote, by the names of groups; pass `schedule` takes them
    schedules: Mapping[str, str] = field(default_factory=dict[str, str])
    rewrites: list[Rewrite] = field(default_factory=list[Rewrite])
    misses: list[Miss] = field(default_factory=list[Miss])
    formed: list[Formed] = field(default_factory=list[Formed])
    refused: list[Refused] = field(default_factory=list[Refused])
    notes: list[Note] = field(default_factory=list[Note])
    told: set[Note] = field(default_factory=set[Note], repr=False)
    choices: list[Choice] = field(default_factory=list[Choice])  # of schedules

    @property
    def gpu(self) -> Gpu:
        """The GPU that the function is lowered for. Raises UsageError where that is a CPU."""
        return as_gpu(self.target)

    @property
    def cpu(self) -> Cpu:
        """The CPU that the function is lowered for. Raises UsageError where that is a GPU."""
        return as_cpu(self.target)

    def spend(self, rule: str, source: Lines = (), node: str = "") -> bool:
        """Whether one more rewrite may happen; notes it when so, with the value it is about."""
        if not self.fuel.take():
            return False
        self.rewrites.append(Rewrite(rule, source, node))
        return True

    def miss(self, rule: str, reason: str, node: Node, scope: Block) -> None:
        """Note a near match (verbose logs only)."""
        if self.verbose:
            entry = Miss(rule, reason, print_node(node, scope), scope.locs.get(node, ()))
            if entry not in self.misses:
                self.misses.append(entry)

    def note(self, text: str, source: Lines = ()) -> None:
        """Free text for the record, such as what a pass decided and why; once is enough."""
        found = Note(text, source)
        if found not in self.told:
            self.told.add(found)
            self.notes.append(found)

    def extend(self, other: Log) -> None:
        """Take over what another log says; its fuel was spent there."""
        self.rewrites += other.rewrites
        self.misses += other.misses
        self.formed += other.formed
        self.refused += other.refused
        self.notes += other.notes
        self.choices += other.choices

    @property
    def by_rule(self) -> Counter[str]:
        """How often each rule applied."""
        return Counter(r.rule for r in self.rewrites)

    @property
    def by_line(self) -> Counter[tuple[str, str]]:
        """How often each rule applied, by source line."""
        return Counter((r.rule, line) for r in self.rewrites for line in r.source or ("",))
