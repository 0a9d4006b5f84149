"""Fusion: a greedy engine that joins neighbouring groups if a fusion rule allows it.

    class Epilogue(FusionRule):
        def legal(self, producer, consumer, maps):
            if not producer.dots:
                return NOT_MINE
            if consumer.reduces:
                return Why("the consumer reduces")
            return Ok

Before the engine calls a rule, it has mapped the axes of both groups into one loop space (`maps`)
and checked the contract with backends (`check_contract`). Afterwards it checks that no other path
leads from producer to consumer. A rule decides only whether fusion is profitable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from stack.errors import UsageError, unknown_name
from stack.imports import import_named
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction
from stack.rewrite.group import Group, bytes_of, check_contract, few_rows
from stack.rewrite.join import Maps, join
from stack.rewrite.log import Log, RefusedFusion
from stack.rewrite.units import Units, single
from stack.rewrite.verdict import NOT_MINE, Acceptance, Why


class FusionRule(ABC):
    """Decides which groups to join. Rules are tried in order; the first that returns `Ok` decides.

    Rules of stage 0 join as much as they can before rules of stage 1 are tried. Rules with
    `siblings` also get pairs that read a common value and are not producer and consumer; other
    rules never do.
    """

    stage: int = 0
    siblings: bool = False

    @property
    def name(self) -> str:
        """Name of the rule in records."""
        return type(self).__name__

    @abstractmethod
    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        """Returns `Ok` to join the groups, a `Why` with the reason not to, or `NOT_MINE` if this
        rule does not cover such pairs.
        """

    def score(self, producer: Group, consumer: Group) -> int:
        """Bytes of memory traffic that joining saves. The engine tries pairs with the highest score
        first.

        They are one read of each value in between, its write if nothing else needs the value (else
        it stays an output), and the inputs that both groups read.
        """
        total = sum(bytes_of(value) for value in producer.outputs if value in consumer.inputs)
        if set(producer.outputs) <= set(consumer.inputs):
            total *= 2
        shared = set(producer.inputs).intersection(consumer.inputs)
        return total + sum(bytes_of(v) for v in shared)


def steered(rules: Sequence[FusionRule], items: Sequence[str]) -> tuple[FusionRule, ...]:
    """Adds the rules that `items` name as `module:Class` in front, and removes those named `-NAME`.

    Raises UsageError with the known names.
    """
    kept = {rule.name: rule for rule in rules}
    added: list[FusionRule] = []
    for item in items:
        if item.startswith("-"):
            if kept.pop(item[1:], None) is None:
                raise unknown_name("no fusion rule", item[1:], kept)
            continue
        left, _, name = item.rpartition(":")
        cls = getattr(import_named(left), name, None) if left else None
        if not (isinstance(cls, type) and issubclass(cls, FusionRule)):
            raise UsageError(f"{item!r} is neither module:Class, a FusionRule, nor -NAME")
        added.append(cls())
    return (*added, *kept.values())


@dataclass(frozen=True)
class Limits:
    """Limits on every fusion group, whatever the fusion rule: number of inputs, number of nodes,
    and how often operations may be repeated.
    """

    max_inputs: int = 32
    max_nodes: int = 128
    recompute: float = 8


class Grouping(Units):
    """The groups of one closed block.

    `grouped` are ops that groups may contain in addition to elementwise ops, movement and
    reductions. `refused` are ops that they must not contain.
    """

    def __init__(
        self,
        block: Block,
        rules: Sequence[FusionRule],
        log: Log,
        limits: Limits,
        grouped: frozenset[str],
        refused: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(block, grouped, refused)
        self.all_rules = rules
        self.rules: Sequence[FusionRule] = ()
        self.log = log
        self.limits = limits
        # maps each node to the groups that contain it
        self.groups = {n: [single(self, n)] for n in self.units if self.is_grouped(n)}
        self.spans = [0] * (len(self.place) + 1)  # by position: groups that extend past it
        self.scores: dict[tuple[Group, Group], int] = {}
        self.verdicts: dict[tuple[Group, Group], Why] = {}  # those that remain valid
        self.reasons: dict[tuple[Group, Group], Why] = {}

    @property
    def all_groups(self) -> list[Group]:
        """Every group once, in program order."""
        found = {g: None for groups in self.groups.values() for g in groups}
        return sorted(found, key=lambda g: (g.first, g.last))

    # ---- the greedy engine

    def run(self, stage: int) -> None:
        """Joins pairs of groups by the fusion rules of stages up to `stage`, until none of them
        accepts another pair.
        """
        self.ask([rule for rule in self.all_rules if rule.stage <= stage])
        self.reasons.clear()
        while self.rules and (self._sweep() or self._copy_producers()):
            pass  # each of them may make more pairs possible

    def ask(self, rules: Sequence[FusionRule]) -> None:
        """Sets the rules that are tried from now on, and clears cached scores and verdicts of
        pairs.
        """
        self.rules = rules
        self.scores.clear()
        self.verdicts.clear()

    def _pairs(self) -> list[tuple[Group, Group]]:
        pairs: dict[tuple[Group, Group], None] = {}
        for consumer in self.all_groups:
            for source in consumer.inputs:
                for producer in self.groups.get(source, ()):
                    if producer is not consumer:
                        pairs[(producer, consumer)] = None
        if any(rule.siblings for rule in self.rules):
            pairs.update(dict.fromkeys(self._siblings(pairs)))
        return list(pairs)

    def _siblings(self, pairs: Collection[tuple[Group, Group]]) -> Iterator[tuple[Group, Group]]:
        """Yields the pairs of groups that read a common value, in program order, without `pairs`,
        the producers with their consumers.
        """
        groups = self.all_groups
        for i, first in enumerate(groups):
            for second in groups[i + 1 :]:
                shared = not set(first.inputs).isdisjoint(second.inputs)
                if shared and (first, second) not in pairs and (second, first) not in pairs:
                    yield first, second

    def _sweep(self) -> bool:
        pairs = self._pairs()
        for pair in pairs:
            if pair not in self.scores:
                self.scores[pair] = max(rule.score(*pair) for rule in self.rules)
        order = sorted(pairs, key=lambda p: (-self.scores[p], p[0].first, p[1].first))
        gone: set[Group] = set()
        for producer, consumer in order:
            if producer in gone or consumer in gone:
                continue
            found = self.try_pair(producer, consumer)
            if isinstance(found, Why):
                continue
            lines = self.block.lines_of((*producer.members, *consumer.members))
            if not self.log.spend(found.rule, lines, self.label(consumer)):
                return False
            gone.update((producer, consumer))
            self.put(found, producer, consumer)
        return bool(gone)

    def put(self, merged: Group, *parts: Group) -> None:
        """Replaces the groups `parts` by the group `merged` in the tables of groups."""
        for part in parts:
            self.drop(part)
        for place in range(merged.first, merged.last):
            self.spans[place] += 1
        for node in merged.members:
            self.groups[node] = [*self.groups.get(node, ()), merged]

    def try_pair(self, producer: Group, consumer: Group, copy: bool = False) -> Group | Why:
        """Returns the merged group, or the reason why not. `copy` also keeps the producer."""
        key = (producer, consumer)
        known = None if copy else self.verdicts.get(key)
        if known is not None:
            self.reasons[key] = known
            return known
        if consumer.dots and not any(v in consumer.axes for v in producer.outputs):
            self.reasons[key] = Why("a dot reads its operands from memory", kind="memory")
            return self.reasons[key]
        maps = join(producer, consumer)
        if isinstance(maps, Why) or maps.merged is None:
            reason = maps if isinstance(maps, Why) else Why("")
            self.verdicts[key] = reason
            self.reasons[key] = reason
            return reason
        merged = self._complete(maps.merged, producer, consumer, copy)
        answer = self._judge(producer, consumer, maps, merged, copy)
        if isinstance(answer, Why):
            # not cached: a cycle may disappear later, and so may the overlap with other groups
            if answer.kind != "cycle" and not merged.copied:
                self.verdicts[key] = answer
            self.reasons[key] = answer
            return answer
        return replace(merged, rule=answer)

    def _complete(self, merged: Group, producer: Group, consumer: Group, copy: bool) -> Group:
        members = tuple(sorted({*producer.members, *consumer.members}, key=self.place.__getitem__))
        held = set(members)
        inputs: dict[Node, None] = {}
        for node in members:
            for source in self.reads[node]:
                if source not in held:
                    inputs[source] = None
        parts = (producer, consumer)
        copied = {n for n in merged.copied if all(n in p.copied or n not in p.held for p in parts)}
        if copy:
            copied.update(producer.members)
        outputs: list[Node] = []
        for node in members:
            others = [g for g in self.groups.get(node, ()) if g not in parts]
            if node in copied or any(node not in g.copied for g in others):
                continue  # another group provides it to the other readers
            if node in self.needed or any(r not in held for r in self.readers.get(node, ())):
                outputs.append(node)
        return replace(
            merged,
            members=members,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            first=self.place[members[0]],
            last=self.place[members[-1]],
            copied=frozenset(copied),
        )

    def _judge(
        self, producer: Group, consumer: Group, maps: Maps, merged: Group, copy: bool
    ) -> str | Why:
        """Returns the name of the first rule that joins the pair, or the reason against it: a
        limit, the contract with backends, an idle machine, a cycle, or that of a rule.
        """
        if len(merged.inputs) > self.limits.max_inputs:
            most = f"at most {self.limits.max_inputs} are allowed"
            return Why(f"{len(merged.inputs)} inputs, {most}", kind="limit")
        if len(merged.members) > self.limits.max_nodes:
            most = f"at most {self.limits.max_nodes} are allowed"
            return Why(f"{len(merged.members)} ops, {most}", kind="limit")
        maps.merged = merged
        maps.recomputed, broken = check_contract(merged, self.limits.recompute)
        if broken is not None:
            return broken
        if merged.reduced and few_rows(merged):
            return Why("a few long rows would run on one core", kind="idle")
        reason: Why | None = None
        siblings = set(producer.outputs).isdisjoint(consumer.inputs)
        for rule in self.rules:
            if siblings and not rule.siblings:
                continue
            answer = rule.legal(producer, consumer, maps)
            if isinstance(answer, Acceptance):
                back = siblings and self._has_detour(consumer, producer)
                if not copy and (back or self._has_detour(producer, consumer)):
                    return Why("another path leads from the producer to the consumer", kind="cycle")
                return rule.name
            if answer is not NOT_MINE:
                reason = answer if reason is None else reason
        return Why("no rule fuses these two") if reason is None else reason

    def _has_detour(self, producer: Group, consumer: Group) -> bool:
        """True if a path from producer to consumer leaves both: fusion would then make a cycle."""
        own = producer.held | consumer.held
        # past a position that no group spans, no path leads back
        end = self.spans.index(0, consumer.last)
        first = [r for n in producer.members for r in self.readers.get(n, ())]
        pending = [r for r in first if r not in own]
        for reader in first:
            # members may be copied into other groups, which then read the producer too
            for group in self.groups.get(reader, ()) if reader in own else ():
                if group is not producer and group is not consumer:
                    pending.extend(r for n in group.members for r in self.readers.get(n, ()))
        seen: set[Node] = set()
        left: set[Group] = {producer}
        while pending:
            node = pending.pop()
            if node in seen or self.place[node] > end:
                continue
            seen.add(node)
            if node in consumer.held:
                return True
            holders = self.groups.get(node)
            if not holders:
                pending.extend(self.readers.get(node, ()))
                continue
            for group in holders:
                if group not in left:
                    left.add(group)
                    pending.extend(r for n in group.members for r in self.readers.get(n, ()))
        return False

    def regroup(self, nodes: Sequence[Node]) -> Group | Why:
        """Returns one group of these nodes, or the reason why not. No other group may contain them
        now.
        """
        left = sorted(nodes, key=self.place.__getitem__, reverse=True)
        group = single(self, left.pop(0))
        while left:
            for node in left:
                other = single(self, node)
                pair: tuple[Group, Group]
                if any(v in group.axes for v in other.outputs):
                    pair = (other, group)
                elif any(v in other.axes for v in group.outputs):
                    pair = (group, other)
                else:
                    continue
                first, second = pair
                maps = join(first, second)
                if isinstance(maps, Why) or maps.merged is None:
                    return maps if isinstance(maps, Why) else Why("")
                group = self._complete(maps.merged, first, second, copy=False)
                left.remove(node)
                break
            else:
                return Why("the nodes are not connected")
        broken = check_contract(group, self.limits.recompute)[1]
        return group if broken is None else broken

    # ---- copying small producers into all of their readers

    def _copy_producers(self) -> bool:
        for producer in self.all_groups:
            if any(n in self.needed for n in producer.outputs):
                continue
            if producer.kind != "loop" or producer.flops > self.limits.recompute:
                continue
            outside = (r for n in producer.outputs for r in self.readers.get(n, ()))
            readers = list(dict.fromkeys(r for r in outside if r not in producer.held))
            if any(not self.groups.get(r) or is_contraction(r) for r in readers):
                continue
            holders = (g for r in readers for g in self.groups[r])
            consumers = list(dict.fromkeys(g for g in holders if g is not producer))
            if len(consumers) < 2 or not self._pays(producer, consumers):
                continue
            done = self.copies("copy_producer", producer, consumers)
            if not done:
                continue
            self.put(done[0], producer)
            for new, old in zip(done, consumers):
                if new is not done[0]:
                    self.put(new, old)
                else:
                    self.drop(old)
            return True
        return False

    def copies(self, rule: str, producer: Group, consumers: Sequence[Group]) -> list[Group]:
        """Merges a copy of the producer into each consumer, and returns the merged groups. Returns
        an empty list if a consumer rejects its copy, or if no rewrites are left.
        """
        merged = [self.try_pair(producer, c, copy=True) for c in consumers]
        done = [m for m in merged if isinstance(m, Group)]
        if not done or len(done) < len(merged):
            return []
        lines = self.block.lines_of((*producer.members, *done[0].members))
        return done if self.log.spend(rule, lines, self.label(done[0])) else []

    def drop(self, old: Group) -> None:
        """Removes a group from the tables of groups, for example after all its consumers got a copy
        of its nodes.
        """
        for place in range(old.first, old.last):
            self.spans[place] -= 1
        for node in old.members:
            self.groups[node] = [g for g in self.groups.get(node, ()) if g is not old]

    def _pays(self, producer: Group, consumers: Sequence[Group]) -> bool:
        """True if copies of the producer in all consumers move no more bytes than one producer
        whose results are stored: the copies read the producer's inputs instead of its outputs.
        """
        made = sum(bytes_of(v) for v in producer.outputs)
        taken = sum(bytes_of(v) for v in producer.inputs)
        kept = taken + made
        copied = 0
        for consumer in consumers:
            volume = sum(bytes_of(v) for v in consumer.outputs)
            share = min(1.0, volume / made) if made and not consumer.reduces else 1.0
            kept += round(share * made)
            copied += round(share * taken)
        return copied <= kept

    # ---- report of refused pairs

    def report(self) -> None:
        """Records in the log each pair of neighbours that was not joined, with the reason."""
        alive, lines = set(self.all_groups), self.block.lines_of
        for (producer, consumer), why in self.reasons.items():
            if producer not in alive or consumer not in alive or why is NOT_MINE:
                continue
            self.log.refused.append(
                RefusedFusion(
                    self.label(producer),
                    self.label(consumer),
                    why.reason,
                    lines((why.node,) if why.node is not None else consumer.members[:1]),
                    why.kind,
                    (lines(producer.members), lines(consumer.members)),
                )
            )

    def label(self, group: Group) -> str:
        """The name of a group: `%name` of its last output."""
        node = group.outputs[-1] if group.outputs else group.members[-1]
        return f"%{self.block.names.get(node, node.op)}"
