"""Groups that a person or another compiler gives, in place of those that fusion would choose.

The engine still judges every pair: axes, cycles, limits and fusion rules. A given group that is not
legal is split where it is not, and the other given groups apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from stack.errors import unknown_name
from stack.ir.node import Block, Node
from stack.rewrite.fusion import FusionRule
from stack.rewrite.group import Group
from stack.rewrite.join import Maps
from stack.rewrite.verdict import NOT_MINE, Acceptance, Why

_NAME = re.compile(r"[^\s{}\"]+")  # other names cannot be written in the text of a pipeline


class GivenGroups:
    """Groups of a block by names of values; a value may be in several, which then recompute it.

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

    def common(self, nodes: Iterable[Node]) -> frozenset[int]:
        """Returns the numbers of the given groups that contain all of `nodes`."""
        return frozenset.intersection(*(self.numbers.get(n, frozenset()) for n in nodes))

    def rules(self, rules: Sequence[FusionRule]) -> list[FusionRule]:
        """Restricts fusion rules to pairs inside one given group."""
        return [_Within(rule, self) for rule in rules]


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
    return " ".join(f"%{name}" for name in _usable(block.names, nodes))


def _usable(names: Mapping[Node, str], nodes: Iterable[Node]) -> Iterable[str]:
    return (names[n] for n in nodes if n in names and _NAME.fullmatch(names[n]))
