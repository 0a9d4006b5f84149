"""Patterns: what to look for, when it is allowed, what to put there.

class FuseRelu(Pattern):
    "max(x, 0) with the zero on either side"

    def pattern(self, op, x):
        return op.max(x, 0.0)

    def rewrite(self, op, m):
        return op.relu(m.x)
"""

from __future__ import annotations

import inspect
import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from stack.ir.algebra import COMMUTATIVE
from stack.ir.builder import Builder
from stack.ir.data import Data
from stack.ir.node import Node
from stack.rewrite.engine import Replacement, Scope
from stack.rewrite.verdict import Fail, Ok, Yes


@dataclass(frozen=True)
class Wild:
    """Matches any value, the same one wherever the name occurs. In capitals: a constant only."""

    name: str

    @property
    def constant(self) -> bool:
        return self.name.isupper()


@dataclass(frozen=True)
class Literal:
    """A constant whose elements all have this value, scalar or broadcast."""

    value: float | int | bool


@dataclass(frozen=True)
class OpPattern:
    """One op with patterns for its operands; attributes match where they are given."""

    op: str
    args: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    label: str = ""
    may_share: bool = False

    def named(self, label: str) -> OpPattern:
        """Bind the matched node, as a wildcard would."""
        return replace(self, label=label)

    def shared(self) -> OpPattern:
        """Match even where the value is also used outside of the match."""
        return replace(self, may_share=True)


@dataclass(frozen=True)
class Either:
    """The first alternative that matches."""

    choices: tuple[Any, ...]


class PatternOps:
    """Makes op patterns by name: `op.mul(x, op.rsqrt(y))`, `op.reduce(x, kind="sum")`."""

    def either(self, *choices: Any) -> Either:
        """Any one of several patterns."""
        return Either(choices)

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        op = name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name

        def make(*args: Any, **attrs: Any) -> OpPattern:
            return OpPattern(op, args, attrs)

        return make


class Match:
    """A match: `m.node` is the root, `m.x` what a name is bound to, `m.inner` the rest of it."""

    node: Node
    inner: tuple[Node, ...]
    bound: Mapping[str, Node]
    scope: Scope

    def __init__(
        self, node: Node, inner: tuple[Node, ...], bound: Mapping[str, Node], scope: Scope
    ) -> None:
        self.node = node
        self.inner = inner
        self.bound = bound
        self.scope = scope

    def __getattr__(self, name: str) -> Node:
        if name.startswith("_") or name not in self.bound:
            raise AttributeError(f"nothing is bound to {name!r}; names: {', '.join(self.bound)}")
        return self.bound[name]

    def __getitem__(self, name: str) -> Node:
        return self.bound[name]


_RESERVED = frozenset({"node", "inner", "bound", "scope"})


class Pattern(ABC):
    """Match, check, rewrite. Subclasses define `pattern` and `rewrite`, and `check` if needed.

    Inner nodes of a match must not be used outside of it, else both would be computed: say
    `.shared()` on a pattern node, or `allow_shared = True`, where that is meant.
    """

    allow_shared: bool = False

    @abstractmethod
    def pattern(self, op: PatternOps, *names: Any) -> Any:
        """The pattern. Parameters after `op` are wildcards, bound under their names."""

    def check(self, m: Match) -> Yes | Fail:
        """Whether a match may be rewritten: `Ok`, or a `Fail` that names the reason and value."""
        return Ok

    @abstractmethod
    def rewrite(self, op: Builder, m: Match) -> Node:
        """What takes the place of `m.node`; of the same type."""

    # ---- what the engine sees

    @cached_property
    def name(self) -> str:
        """Name of the rule in records."""
        return type(self).__name__

    @cached_property
    def compiled(self) -> tuple[OpPattern, ...]:
        """The pattern as data, one entry for each alternative root."""
        wilds = list(inspect.signature(self.pattern).parameters)[1:]
        bad = sorted(_RESERVED.intersection(wilds))
        if bad:
            raise TypeError(f"{self.name}: pattern parameters may not be called {', '.join(bad)}")
        made = self.pattern(PatternOps(), *map(Wild, wilds))
        choices = made.choices if isinstance(made, Either) else (made,)
        for choice in choices:
            if not isinstance(choice, OpPattern):
                raise TypeError(f"{self.name}: the root of a pattern is an op, not {choice!r}")
        return choices

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Ops at which the pattern may match."""
        return tuple(dict.fromkeys(p.op for p in self.compiled))

    def apply(self, node: Node, scope: Scope) -> Replacement | None:
        """Match at one node; used by the engine."""
        for root in self.compiled:
            if root.op != node.op:
                continue
            attempt = _Attempt()
            refusal: tuple[str, Node] | None = None
            for state in attempt.match(root, node, _State()):
                m = Match(node, state.inner(node), state.bound, scope)
                verdict = self._verdict(m, state)
                if isinstance(verdict, Yes):
                    builder = Builder()
                    new = self.rewrite(builder, m)
                    return Replacement(new, m.inner, builder.names, builder.locs)
                refusal = refusal or (verdict.reason, verdict.node or node)
            if refusal is None and attempt.depth > 1 and attempt.reason is not None:
                refusal = attempt.reason
            if refusal is not None:
                scope.log.miss(self.name, refusal[0], refusal[1], scope.block)
        return None

    def _verdict(self, m: Match, state: _State) -> Yes | Fail:
        if not self.allow_shared:
            whole = (*m.inner, m.node)
            for inner in m.inner:
                if inner not in state.may_share and m.scope.used_outside(inner, whole):
                    return Fail("a value inside the match is used elsewhere too", inner)
        return self.check(m)


@dataclass(frozen=True)
class _State:
    bound: Mapping[str, Node] = field(default_factory=dict[str, Node])
    nodes: tuple[Node, ...] = ()
    may_share: frozenset[Node] = frozenset()

    def bind(self, name: str, node: Node) -> _State:
        return replace(self, bound={**self.bound, name: node})

    def inner(self, root: Node) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(n for n in self.nodes if n is not root))


class _Attempt:
    """One try to match, with backtracking over operand orders; remembers how far it came."""

    def __init__(self) -> None:
        self.depth = 0
        self.reason: tuple[str, Node] | None = None

    def fail(self, state: _State, node: Node, reason: str) -> None:
        if len(state.nodes) > self.depth or self.reason is None:
            self.depth = len(state.nodes)
            self.reason = (reason, node)

    def match(self, pattern: Any, node: Node, state: _State) -> Iterator[_State]:
        if isinstance(pattern, Wild):
            yield from self._wild(pattern, node, state)
        elif isinstance(pattern, Either):
            for choice in pattern.choices:
                yield from self.match(choice, node, state)
        elif isinstance(pattern, OpPattern):
            yield from self._op(pattern, node, state)
        else:
            value = pattern.value if isinstance(pattern, Literal) else pattern
            found = splat(node)
            if found is not None and found == value:
                yield state
            else:
                self.fail(state, node, f"expected the constant {value}")

    def _wild(self, pattern: Wild, node: Node, state: _State) -> Iterator[_State]:
        known = state.bound.get(pattern.name)
        if pattern.constant and node.op != "const":
            self.fail(state, node, f"{pattern.name} is not a constant")
        elif known is None:
            yield state.bind(pattern.name, node)
        elif known is node:
            yield state
        else:
            self.fail(state, node, f"{pattern.name} would be two different values")

    def _op(self, pattern: OpPattern, node: Node, state: _State) -> Iterator[_State]:
        if node.op != pattern.op or len(node.args) != len(pattern.args):
            self.fail(state, node, f"expected {pattern.op}, found {node.op}")
            return
        for name, value in pattern.attrs.items():
            if node.attrs.get(name) != value:
                self.fail(state, node, f"{name} is {node.attrs.get(name)}, not {value}")
                return
        share = state.may_share | {node} if pattern.may_share else state.may_share
        state = replace(state, nodes=(*state.nodes, node), may_share=share)
        if pattern.label:
            state = state.bind(pattern.label, node)
        orders: list[Sequence[Node]] = [node.args]
        if pattern.op in COMMUTATIVE and len(node.args) == 2 and node.args[0] is not node.args[1]:
            orders.append(node.args[::-1])
        for order in orders:
            yield from self._operands(pattern.args, order, state)

    def _operands(
        self, patterns: Sequence[Any], nodes: Sequence[Node], state: _State
    ) -> Iterator[_State]:
        if not patterns:
            yield state
            return
        for after in self.match(patterns[0], nodes[0], state):
            yield from self._operands(patterns[1:], nodes[1:], after)


def splat(node: Node) -> Any:
    """The value of a constant whose elements are all equal, through broadcasts; else None."""
    while node.op in ("broadcast", "reshape", "transpose"):
        node = node.args[0]
    if node.op != "const":
        return None
    data: Data = node.attrs["value"]
    if not data.size:
        return None
    flat = data.array.reshape(-1)
    if data.size > 1 and not bool(np.all(flat == flat[0])):
        return None
    return flat[0].item()
