"""Groups that a person or another compiler gives, in place of those that fusion would choose.

The engine still judges every pair: axes, cycles, limits and fusion rules. A given group that is not
legal is split where it is not, and the other given groups apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
                before = self.numbers.get(named[name], frozenset())
                self.numbers[named[name]] = before | {number}

    def form(self, grouping: Grouping) -> None:
        """Joins the groups of `grouping` inside each given group, as far as its rules accept it."""
        grouping.all_rules = [_Within(rule, self) for rule in grouping.all_rules]
        grouping.run(max((rule.stage for rule in grouping.all_rules), default=0))

    def common(self, nodes: Iterable[Node]) -> frozenset[int]:
        """Returns the numbers of the given groups that contain all of `nodes`."""
        return frozenset.intersection(*(self.numbers.get(n, frozenset()) for n in nodes))

    def pieces(self, grouping: Grouping, number: int) -> list[Group]:
        """Returns the groups that became of a given group; one if it is legal."""
        return [g for g in grouping.all_groups if number in self.common(g.members)]

    def reasons(self, grouping: Grouping, number: int) -> Iterator[str]:
        """Yields why a given group was split: values, and what keeps them apart."""
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


class _Within(FusionRule):
    """A fusion rule, for pairs inside one given group.

    It also gets neighbours that only read a common value, because other compilers group those.
    """

    siblings = True

    def __init__(self, rule: FusionRule, given: GivenGroups) -> None:
        self.rule = rule
        self.given = given
        self.stage = rule.stage

    @property
    def name(self) -> str:
        return self.rule.name

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        if not self.given.common((*producer.members, *consumer.members)):
            return Why("the given groups keep them apart", kind="given")
        are_siblings = set(producer.outputs).isdisjoint(consumer.inputs)
        if are_siblings and not self.rule.siblings and (producer.dots or consumer.dots):
            return NOT_MINE
        return self.rule.legal(producer, consumer, maps)

    def score(self, producer: Group, consumer: Group) -> int:
        return self.rule.score(producer, consumer)


def group_text(block: Block, nodes: Iterable[Node]) -> str:
    """Returns the text of a given group: `%mul %add`. Leaves out values without a usable name."""
    names = (block.names.get(node, "") for node in nodes)
    return " ".join(f"%{name}" for name in names if _NAME.fullmatch(name))
