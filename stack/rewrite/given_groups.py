"""Groups that a person or another compiler gives, in place of those that fusion would choose.

The engine still judges every pair: axes, cycles, limits and fusion rules. A given group that is not
legal is split where it is not, and the other given groups apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stack.errors import unknown_name
from stack.ir.node import Block, Node
from stack.rewrite.fusion import FusionRule, Grouping
from stack.rewrite.group import Group
from stack.rewrite.join import Maps
from stack.rewrite.verdict import NOT_MINE, Acceptance, Why

_NAME = re.compile(r"[^\s{}\"]+")  # other names cannot be written in the text of a pipeline


class GivenGroups:
    """Given groups of a block, as names of values; a value may be in several.

    Values that are in none stay alone. Raises UsageError for a name that the block does not have.
    """

    def __init__(self, block: Block, texts: Iterable[str]) -> None:
        named = {name: node for node, name in block.names.items()}
        self.numbers: dict[Node, frozenset[int]] = {}
        for number, text in enumerate(texts):
            for word in text.split():
                name = word.removeprefix("%")
                if name not in named:
                    raise unknown_name("no value", word, [f"%{n}" for n in named])
                before = self.numbers.get(named[name], frozenset[int]())
                self.numbers[named[name]] = before | {number}

    def form(self, grouping: Grouping) -> None:
        """Joins the groups of `grouping` inside each given group, as far as its rules accept it.

        A value of several given groups is copied into each of them.
        """
        rules = grouping.all_rules
        stage = max((rule.stage for rule in rules), default=0)
        grouping.all_rules = [_Within(rule, self, keeps_all=True) for rule in rules]
        grouping.run(stage)
        grouping.all_rules = [_Within(rule, self) for rule in rules]
        grouping.ask(grouping.all_rules)
        for group in reversed(grouping.all_groups):
            if len(self.common(group.members)) > 1:
                self._copy(grouping, group)
        grouping.run(stage)

    def _copy(self, grouping: Grouping, group: Group) -> None:
        """Copies a group into its readers, if they are in one of the same given groups."""
        outside = (r for n in group.outputs for r in grouping.readers.get(n, ()))
        readers = dict.fromkeys(r for r in outside if r not in group.held)
        holders = list(dict.fromkeys(g for r in readers for g in grouping.groups.get(r, ())))
        holders = [g for g in holders if g is not group]
        is_kept = any(n in grouping.needed for n in group.outputs)
        is_kept |= any(not grouping.groups.get(r) for r in readers)
        for holder in holders:
            done: list[Group] = []
            if self.common((*group.members, *holder.members)):
                done = grouping.copies("given_groups", group, [holder])
            for new in done:
                grouping.put(new, holder)
            is_kept |= not done
        if not is_kept and holders:
            grouping.drop(group)

    def common(self, nodes: Iterable[Node]) -> frozenset[int]:
        """Returns the numbers of the given groups that contain all of `nodes`."""
        first, *others = (self.numbers.get(n, frozenset[int]()) for n in nodes)
        return first.intersection(*others)

    def pieces(self, grouping: Grouping, number: int) -> list[Group]:
        """Returns the groups that a given group was split into; one if it is legal.

        A group of values that another one of them has copies of does not count.
        """
        found = [g for g in grouping.all_groups if number in self.common(g.members)]
        return [g for g in found if not any(g.held < other.held for other in found)]

    def reasons(self, grouping: Grouping, number: int) -> Iterator[str]:
        """Yields the reasons for which a given group was split, each with the values concerned."""
        for node, numbers in self.numbers.items():
            if number in numbers and node in grouping.reads and node not in grouping.groups:
                yield f"%{grouping.block.names[node]}: a group cannot contain the op {node.op}"
        pieces = self.pieces(grouping, number)
        apart = False
        for first in pieces:
            for second in pieces:
                why = grouping.reasons.get((first, second))
                if why is not None and why.kind != "given":
                    apart = True
                    yield f"{grouping.label(first)} and {grouping.label(second)}: {why.reason}"
        if len(pieces) > 1 and not apart:
            names = ", ".join(map(grouping.label, pieces))
            yield f"{names}: they read no common value, and none reads another's result"


class WithSiblings(FusionRule):
    """A fusion rule that also gets neighbours which only read a common value.

    Matmuls do not join these: they read operands from memory.
    """

    siblings = True

    def __init__(self, rule: FusionRule) -> None:
        self.rule = rule
        self.stage = rule.stage

    @property
    def name(self) -> str:
        return self.rule.name

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        are_siblings = set(producer.outputs).isdisjoint(consumer.inputs)
        if are_siblings and not self.rule.siblings and (producer.dots or consumer.dots):
            return NOT_MINE
        return self.rule.legal(producer, consumer, maps)

    def score(self, producer: Group, consumer: Group) -> int:
        return self.rule.score(producer, consumer)


class _Within(WithSiblings):
    """A fusion rule, for pairs inside one given group; if `keeps_all`, for pairs of members that
    are all in the same given groups.
    """

    def __init__(self, rule: FusionRule, given: GivenGroups, keeps_all: bool = False) -> None:
        super().__init__(rule)
        self.given = given
        self.keeps_all = keeps_all

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        common = self.given.common((*producer.members, *consumer.members))
        most = max(len(self.given.common(g.members)) for g in (producer, consumer))
        if not common or (self.keeps_all and len(common) < most):
            return Why("no given group contains both", kind="given")
        return super().legal(producer, consumer, maps)


def group_text(block: Block, nodes: Iterable[Node]) -> str:
    """Returns the text of a given group: `%mul %add`. Leaves out values without a usable name."""
    names = (block.names.get(node, "") for node in nodes)
    return " ".join(f"%{name}" for name in names if _NAME.fullmatch(name))
