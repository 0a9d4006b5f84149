"""The rewrite engine: applies rules to a fixed point and keeps names and source lines.

Rules of one round match on an unchanged graph; all replacements of the round are then inserted at
once. Equal nodes are one object, so a function that returns to an earlier state is detected, and
the error names the rules that caused the cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from stack.errors import RuleError, StackError, VerifyError
from stack.ir.builder import Builder, remade
from stack.ir.func import Func
from stack.ir.node import Block, Node, deps
from stack.ir.printer import print_node
from stack.rewrite.check import EXACT, Inexact
from stack.rewrite.log import Lines, Log
from stack.rewrite.verdict import Why

Uses = Mapping[Node, tuple[Node, ...]]


class CycleError(StackError):
    """Rewriting does not terminate. `rules` names the rules that undo each other."""

    def __init__(self, rules: Sequence[str], detail: str) -> None:
        self.rules = tuple(rules)
        super().__init__(f"the rewrite rules {', '.join(rules)} cycle: {detail}")


@dataclass(frozen=True)
class Replacement:
    """The node that replaces a match, and the inner nodes, whose source lines it also gets."""

    node: Node
    inner: tuple[Node, ...] = ()
    names: Mapping[Node, str] | None = None
    locs: Mapping[Node, Lines] | None = None


@dataclass(eq=False)
class Scope:
    """The closed block that is being rewritten, for rules that need the users, names or source
    lines of nodes.
    """

    block: Block
    log: Log
    asked: bool = False  # True if a rule queried uses: its answer may change later

    @cached_property
    def _uses(self) -> tuple[dict[Node, list[Node]], frozenset[Node]]:
        table: dict[Node, list[Node]] = {}
        results = set(self.block.results)
        for node in self.block.all_nodes:
            for arg in dict.fromkeys(node.args):
                table.setdefault(arg, []).append(node)
            for block in node.blocks:
                if block.is_open:
                    results.update(block.results)
        return table, frozenset(results)

    def users(self, node: Node) -> Sequence[Node]:
        """Returns the nodes of the block and its open blocks that have `node` as an operand."""
        self.asked = True
        return self._uses[0].get(node, ())

    def is_result(self, node: Node) -> bool:
        """True if the block that is being rewritten, or an open block in it, returns the node."""
        self.asked = True
        return node in self._uses[1]

    def used_outside(self, node: Node, inside: Container[Node]) -> bool:
        """True if a node that is not in `inside` has `node` as an operand, or if a block returns
        `node`.
        """
        return self.is_result(node) or any(u not in inside for u in self.users(node))


class Rule(Protocol):
    """A rewrite rule. `Simple` makes one from a function."""

    @property
    def name(self) -> str: ...

    @property
    def roots(self) -> Sequence[str]:
        """Names of the ops of nodes to which the rule is applied."""
        ...

    def apply(self, node: Node, scope: Scope) -> Replacement | None: ...


Function = Callable[[Node, Builder, Scope], Node | Why | None]


@dataclass(frozen=True)
class Simple:
    """A rule from one function: `(node, builder, scope)` to the replacement of the node.

    The function returns None if the rule does not match, and `Why` for a near match: see
    `Log.miss`. It is not asked about nodes without an operand of an op in `of`, if there are any.
    """

    name: str
    roots: tuple[str, ...]
    function: Function
    doc: str = ""
    inexact: Inexact = EXACT
    of: tuple[str, ...] = ()

    def apply(self, node: Node, scope: Scope) -> Replacement | None:
        if self.of and all([a.op not in self.of for a in node.args]):
            return None
        builder = Builder()
        new = self.function(node, builder, scope)
        if new is None:
            return None
        if isinstance(new, Why):
            scope.log.miss(self.name, new.reason, new.node or node, scope.block)
            return None
        return Replacement(new, (), builder.names, builder.locs)


def on(
    *roots: str, of: tuple[str, ...] = (), inexact: Inexact = EXACT
) -> Callable[[Function], Simple]:
    """Decorator: makes a function a rule for these ops, with an operand of an op in `of`, if given.

    `inexact`: how far the rule may change results. Checks accept no more.
    """

    def wrap(function: Function) -> Simple:
        name, doc = function.__name__.lstrip("_"), function.__doc__ or ""
        return Simple(name, roots, function, doc, inexact, of)

    return wrap


def enter_control_flow(node: Node) -> bool:
    """True if the closed blocks of a node are control flow of the program (calls, loops, branches);
    False for groups, kernels and hosted operators. For argument `enter` of `rewrite`.
    """
    return node.op not in ("custom", "fusion", "kernel", "stream")


def rewrite(
    func: Func,
    rules: Sequence[Rule],
    log: Log,
    *,
    enter: Callable[[Node], bool] = enter_control_flow,
    limit: int | None = None,
) -> Func:
    """Applies rules until none matches.

    Args:
        enter: returns True if the closed blocks of a node are rewritten too.
        limit: maximum number of rewrites of one block; by default 1,000 plus 50 for each node.

    Raises:
        CycleError: the rules do not terminate.
        VerifyError: a rule made a node of another type, or one that the op table rejects.
    """
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            table.setdefault(root, []).append(rule)
    if table.keys().isdisjoint(func.body.ops):
        return func
    return Func(func.name, _Engine(table, log, enter, limit).block(func.body), func.level)


@dataclass
class _Engine:
    """Applies the rules in `table`, by names of ops, to blocks; `blocks` are the results so far."""

    table: Mapping[str, Sequence[Rule]]
    log: Log
    enter: Callable[[Node], bool]
    limit: int | None
    blocks: dict[Block, Block] = field(default_factory=dict[Block, Block])
    stopped: bool = False

    def block(self, block: Block) -> Block:
        """Rewrites a closed block to its fixed point."""
        if block in self.blocks:
            return self.blocks[block]
        old = block
        seen = {block.results: 0}
        history: list[Counter[str]] = []
        settled: set[Node] = set()
        budget = self.limit
        while True:
            block = self._nested(block)
            scope = Scope(block, self.log)
            if budget is None:
                budget = 1000 + 50 * len(scope.block.all_nodes)
            replaced, applied = self._round(scope, settled)
            if not replaced:
                self.blocks[old] = self.blocks[block] = block
                return block
            block = replace(block, replaced)
            history.append(applied)
            budget -= len(replaced)
            if block.results in seen and not self.stopped:
                since = sum(history[seen[block.results] :], Counter[str]())
                raise CycleError(
                    sorted(since), f"after {since.total()} rewrites the block is the same again"
                )
            seen.setdefault(block.results, len(history))
            if budget < 0:
                late = sum(history[-4:], Counter[str]())
                raise CycleError(
                    [rule for rule, _ in late.most_common()],
                    f"{sum(h.total() for h in history)} rewrites did not terminate",
                )

    def _nested(self, block: Block) -> Block:
        """Rewrites the closed blocks of those nodes of a block that `enter` accepts."""
        changed: dict[Node, Node] = {}
        for node in block.all_nodes:
            if node.blocks and not all(b.is_open for b in node.blocks) and self.enter(node):
                blocks = [b if b.is_open else self.block(b) for b in node.blocks]
                new = node.rebuilt(blocks=blocks)
                if new is not node:
                    changed[node] = new
        return replace(block, changed)

    def _round(
        self, scope: Scope, settled: set[Node]
    ) -> tuple[dict[Node, Replacement], Counter[str]]:
        """Returns the first replacement that a rule has for each node, and how often each rule was
        applied.
        """
        block = scope.block
        replaced: dict[Node, Replacement] = {}
        applied: Counter[str] = Counter()
        for node in scope.block.all_nodes:
            rules = self.table.get(node.op)
            if not rules or node in settled:
                continue
            scope.asked = False
            for rule in rules:
                try:
                    found = rule.apply(node, scope)
                    if found is None or found.node is node:
                        continue
                    if any(n in replaced for n in found.inner):
                        scope.asked = True  # part of the match changes in this round: retry later
                        continue
                    if found.node.type != node.type:
                        raise VerifyError(
                            f"rule {rule.name} replaces {node.type} by {found.node.type}",
                            print_node(node, block),
                            block.lines_of([node]),
                        )
                except RuleError as error:
                    raise VerifyError(
                        f"rule {rule.name} makes an invalid node: {error}",
                        print_node(node, block),
                        block.lines_of([node]),
                    ) from error
                name = f"%{block.names.get(node, node.op)}"
                if not self.log.spend(rule.name, block.lines_of([node, *found.inner]), name):
                    self.stopped = True
                    return replaced, applied
                if isinstance(rule, Simple) and rule.inexact is not EXACT:
                    self.log.allow(rule.inexact)
                applied[rule.name] += 1
                replaced[node] = found
                break
            else:
                if not scope.asked:
                    settled.add(node)
        return replaced, applied


def replace(block: Block, changed: Mapping[Node, Node | Replacement]) -> Block:
    """Inserts replacements into a closed block.

    Operands of replacements may be old nodes, which are replaced too. A new node takes the name of
    the node that it replaces. It gets the source lines of the whole match and of nodes that become
    dead, so no line is lost while part of its computation remains.
    """
    if not changed:
        return block
    replaced = {n: r if isinstance(r, Replacement) else Replacement(r) for n, r in changed.items()}
    found = block.all_nodes
    done = _resolve(block, found, replaced)
    dead = _dead(block, found, replaced, done)
    old = set(found) | set(block.params)
    names: dict[Node, str] = {}
    locs: dict[Node, Lines] = {}  # a block has each line of a node once
    for node in found:
        new = done.get(node)
        if new is None:
            continue  # only reachable through replaced nodes
        name = block.names.get(node)
        if name is not None:
            names.setdefault(new, name)
        lines = block.locs.get(node)
        if lines:
            locs[new] = locs[new] + lines if new in locs else lines
    for node, replacement in replaced.items():
        if node not in done:
            continue
        for fresh, name in (replacement.names or {}).items():
            if fresh in done:
                names.setdefault(done[fresh], name)
        for fresh, own in (replacement.locs or {}).items():
            if fresh in done:
                locs[done[fresh]] = (*locs.get(done[fresh], ()), *own)
        match = (node, *replacement.inner, *dead.get(node, ()))
        lines = dict.fromkeys(x for n in match for x in block.locs.get(n, ()))
        fresh = _fresh(replacement.node, old, done) if lines else []
        inside = {n: _lines_inside(n) for n in fresh if n.blocks and len(fresh) > 1}
        for line in lines:
            # with several groups, only those whose bodies contain the line
            for new in [n for n in inside if line in inside[n]] or fresh:
                locs[done[new]] = (*locs.get(done[new], ()), line)
    results = [done[r] for r in block.results]
    return Block(block.params, results, names, locs)


def _fresh(root: Node, old: set[Node], done: Mapping[Node, Node]) -> list[Node]:
    """The nodes that a replacement adds to the block: `root`, which replaces the old node, and
    those of its operands, and of their operands, that were not in the block before.
    """
    found: dict[Node, None] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node in found or (node in old and node is not root):
            continue
        found[node] = None
        if node not in old:
            pending.extend(deps(node))
    return [n for n in found if n in done]


def _lines_inside(node: Node) -> set[str]:
    """Source lines of the closed blocks of a node."""
    found = {line for b in node.blocks for lines in b.locs.values() for line in lines}
    return found.union(*(_lines_inside(n) for b in node.blocks for n in b.nodes if n.blocks))


def _dead(
    block: Block,
    nodes: Sequence[Node],
    replaced: Mapping[Node, Replacement],
    done: Mapping[Node, Node],
) -> dict[Node, list[Node]]:
    """Maps each replaced node to the old nodes that become dead because only it needed them, so
    that its replacement gets their source lines.
    """
    alive: set[Node] = set()
    pending = [done[r] for r in block.results]
    while pending:
        node = pending.pop()
        if node not in alive:
            alive.add(node)
            pending.extend(_needs(node))
    heirs: dict[Node, dict[Node, None]] = {n: {n: None} for n in replaced if done.get(n) in alive}
    found: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        own = heirs.get(node, {})
        for heir in own:
            if heir is not node:
                found.setdefault(heir, []).append(node)
        for need in _needs(node) if own else ():
            if done.get(need) not in alive:
                heirs.setdefault(need, {}).update(own)
    return found


def _needs(node: Node) -> Sequence[Node]:
    """The values that a node needs: its operands, and the results of its open blocks."""
    if not node.blocks:
        return node.args
    return [*node.args, *(r for b in node.blocks if b.is_open for r in b.results)]


def _resolve(
    block: Block, found: Sequence[Node], replaced: Mapping[Node, Replacement]
) -> dict[Node, Node]:
    """Maps every reachable node to its new node. A node inside its own replacement is not replaced
    again.

    `found`: the nodes of the block and of its open blocks, operands first.
    """
    done: dict[Node, Node] = {p: p for p in block.params}
    for node in found:
        if node not in replaced and all(map(done.__contains__, _needs(node))):
            done[node] = node  # none of its inputs changes
    expanding: set[Node] = set()
    stack: list[tuple[Node, str]] = [(r, "enter") for r in reversed(block.results)]
    while stack:
        node, phase = stack.pop()
        if phase == "alias":
            done[node] = done[replaced[node].node]
            continue
        if phase == "enter":
            if node in done:
                continue
            if node in replaced and node not in expanding:
                expanding.add(node)
                stack.append((node, "alias"))
                stack.append((replaced[node].node, "enter"))
                continue
            first = [d for d in _needs(node) if d not in done]
            if first:
                stack.append((node, "build"))
                stack.extend([(d, "enter") for d in reversed(first)])
                continue
        blocks = [
            Block(b.params, [done[r] for r in b.results]) if b.is_open else b for b in node.blocks
        ]
        done[node] = node.rebuilt([done[a] for a in node.args], blocks=blocks)
    return done


def inline_block(block: Block, args: Sequence[Node], builder: Builder) -> list[Node]:
    """Inlines a closed block with `args` for its parameters. Returns the results.

    `builder` gets the names and source lines of the block.
    """
    return copied(block, block.results, dict(zip(block.params, args, strict=True)), builder)


def copied(
    block: Block, results: Sequence[Node], known: Mapping[Node, Node], builder: Builder
) -> list[Node]:
    """Copies values of a closed block, with the nodes in `known` replaced.

    `builder` gets the names and source lines of the block.
    """
    done = remade(results, known)
    for node, new in done.items():
        if node in known:
            continue
        if node in block.names:
            builder.names.setdefault(new, block.names[node])
        if node in block.locs:
            merged = (*builder.locs.get(new, ()), *block.locs[node])
            builder.locs[new] = tuple(dict.fromkeys(merged))
    return [done[r] for r in results]
