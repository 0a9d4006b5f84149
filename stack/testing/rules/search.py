"""Finds small programs on which a rule applies, guided by how far the rule's code runs.

The search starts from one node of each op that the rule is for. It replaces parameters by
expressions of one op, by constants and by each other. Programs on which the rule runs code that it
did not run before are changed further. Ops and numbers that the rule's code names are tried first.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stack.errors import RuleError, StackError
from stack.explore.op_table import EXAMPLES
from stack.ir.data import Data
from stack.ir.func import Func
from stack.ir.node import Block, Node, topological
from stack.ir.types import DType, TensorType, TupleType
from stack.rewrite.blame import shown
from stack.rewrite.engine import Rule, Scope, rewrite
from stack.rewrite.log import Fuel, Log
from stack.testing.rules.branches import Branches, Place, Words, folder, function_of, words_of
from stack.testing.rules.expressions import (
    NUMBERS,
    SHAPES,
    TYPES,
    constants,
    expressions,
    leaf,
    parameters,
    renamed,
)

MOST_NODES = 9  # of programs that are changed further
BLIND = 4  # and of programs that show no new code of the rule
ALIKE = 3  # matches with the same element types that make a rule run the same code
SEEDS = 4  # the part of all tries that the first programs may take
Key = tuple[frozenset[Place], tuple[DType, ...]]


@dataclass(frozen=True)
class Match:
    """A program on which a rule applies, and the program after it. `error` is what the rule raised
    instead.
    """

    before: Func
    after: Func | None
    error: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Sorts small programs first."""
        elements = sum(p.tensor.size for p in self.before.params if isinstance(p.tensor.size, int))
        return len(self.before.body.nodes), elements


def function(root: Node) -> Func:
    """Returns the function of an expression."""
    return Func("f", Block(parameters(root), [root]), "tensor")


def applied(rule: Rule, func: Func, fuel: int | None = 1) -> Match | None:
    """Applies a rule to a function, once by default. None if it does not apply."""
    try:
        after = rewrite(func, (rule,), Log(fuel=Fuel(fuel)))
    except (StackError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        return Match(func, None, shown(e))
    return None if after is func else Match(func, after)


class Search:
    """Yields matches of a rule, each of which makes its code run in another way or has other
    element types.

    Args:
        tries: number of programs on which the rule is called.
    """

    def __init__(self, rule: Rule, tries: int) -> None:
        self.rule = rule
        self.left = tries
        self.words = words_of(rule)
        function = function_of(rule)
        self.branches = Branches(folder(function) if function else "?")
        self.numbers = tuple(dict.fromkeys((*NUMBERS, *self.words.numbers)))
        self.known: set[Node] = set()
        self.keys: Counter[Key] = Counter()
        self.constant: list[Func] = []  # matches without parameters, which come last
        self.count = itertools.count()
        self.queue: list[tuple[int, int, int, Node]] = []

    def __iter__(self) -> Iterator[Match]:
        yield from self._found()
        for func in self.constant:
            match = applied(self.rule, func)
            if match is not None:
                yield match

    def _found(self) -> Iterator[Match]:
        """Yields matches that have parameters."""
        pending: Iterator[Node] = seeds(self.rule.roots, self.left // SEEDS)
        while True:
            for root in pending:
                if self.left <= 0:
                    return
                match = self._tried(root)
                if match is not None:
                    yield match
            if not self.queue:
                break
            pending = self._changed(heapq.heappop(self.queue)[-1])

    def _tried(self, root: Node) -> Match | None:
        """Calls the rule on a program, and queues the program for changes if it is promising."""
        if root in self.known or isinstance(root.type, TupleType):
            return None
        self.known.add(root)
        self.left -= 1
        func = function(root)
        failed = False
        try:
            with self.branches:
                found = self.rule.apply(root, Scope(func.body, Log()))
        except Exception:  # judged by `applied`, which knows what a rule may raise
            found, failed = None, True
        size = len(topological([root]))
        further = self.branches.is_new()
        if size <= (MOST_NODES if further else BLIND):
            heapq.heappush(self.queue, (not further, size, next(self.count), root))
        if not failed and (found is None or found.node is root):
            return None
        key = frozenset(self.branches.ran), tuple(p.dtype for p in func.params)
        self.keys[key] += 1
        if self.keys[key] > ALIKE:
            return None
        if not func.params:
            self.constant.append(func)
            return None
        return applied(self.rule, func)

    def _changed(self, root: Node) -> Iterator[Node]:
        """Yields programs that differ from one in an operand, or in all operands of one type."""
        for dtype in TYPES:
            yield from _accepted(retyped, root, dtype)
        own = parameters(root)
        for p, q in itertools.combinations(own, 2):
            if p.type == q.type:
                yield from _accepted(renewed, root, {q: p})
        for p in own:
            alike = [q for q in own if q.type == p.type]
            for new in self._operands(p.tensor):
                yield from _accepted(renewed, root, {p: fresh(new, 100)})
                if p is alike[0] and len(alike) > 1:
                    every = {q: fresh(new, 100 * (i + 1)) for i, q in enumerate(alike)}
                    yield from _accepted(renewed, root, every)

    def _operands(self, type_: TensorType) -> list[Node]:
        shape = tuple(d for d in type_.shape if isinstance(d, int))
        found = [
            *constants(type_.dtype, shape, self.numbers),
            *expressions(type_.dtype, shape),
        ]
        return sorted(found, key=lambda n: _distance(n, self.words))


def _distance(node: Node, words: Words) -> int:
    """Returns 0 for ops that the rule names, 1 for constants, 2 for others."""
    return (0 if node.op in words.ops else 2) if parameters(node) else 1


def seeds(roots: Sequence[str], most: int) -> Iterator[Node]:
    """Yields up to `most` nodes of these ops on parameters, one of each op in rotation."""
    found: dict[str, list[Node]] = {n: [] for n in roots}
    for name in found:
        # other programs may break the contract of a stream's blocks
        if name in EXAMPLES and name != "stream":
            found[name].append(EXAMPLES[name]())
    for shape, dtype in itertools.product(SHAPES, TYPES):
        for node in expressions(dtype, shape):
            if node.op in found:
                found[node.op].append(node)
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*found.values()))
    for node in itertools.islice(filter(None, rounds), most):
        yield from _accepted(renewed, node, {})


def _accepted(change: object, root: Node, how: object) -> Iterator[Node]:
    try:
        yield change(root, how)  # type: ignore[operator]
    except (RuleError, KeyError, TypeError, ValueError):
        return


def fresh(root: Node, first: int) -> Node:
    """Returns an expression with its parameters numbered from `first` on."""
    own = parameters(root)
    return renamed(root, {p: leaf(p.dtype, p.shape, first + i) for i, p in enumerate(own)})


def renewed(root: Node, known: dict[Node, Node]) -> Node:
    """Returns an expression with nodes replaced, and its parameters numbered in order."""
    return fresh(renamed(root, known), 0)


def retyped(root: Node, dtype: DType) -> Node:
    """Returns an expression with all values of the type of its first parameter in another one."""
    old = next((p.dtype for p in parameters(root)), root.dtype)

    def visit(node: Node) -> Node:
        if isinstance(node.type, TupleType) or node.dtype is not old:
            return node
        attrs = dict(node.attrs)
        if node.op == "const":
            held: Data = attrs["value"]
            with np.errstate(all="ignore"):
                attrs["value"] = Data(held.array.astype(dtype.numpy), dtype)
        return Node(node.op, node.args, attrs, node.tensor.with_dtype(dtype), node.blocks)

    return renewed(renamed(root, {}, visit), {})
