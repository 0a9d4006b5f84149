"""Masks and score modifications of attention, as programs on one score and its position.

A program is elementwise over batch, head, query and key. Each operand names the axes it has (`"...
h"`, `"... s"`, `"t"`), and is passed with axes [b, g, r, s, t]: g heads of keys, each serving r
heads of queries. The program is traced into the IR with the rest of the decomposition, so that a
user's mask becomes part of the kernel. Source: Dong et al., "FlexAttention", 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.ir.dim import Dim, less_equal

NAMES = ("...", "h", "s", "t")


@dataclass(frozen=True)
class Place:
    """Positions of scores: the query's position among the keys, and the index of the key.

    `keys` is the number of keys.
    """

    row: Any
    column: Any
    keys: Any


@dataclass(frozen=True)
class Program:
    """A modification of scores, and a mask. The result of a query that sees no key is 0.

    Attributes:
        operands: axes by name, a subset of "... h s t" in this order.
        score: `(np, score, place, *operands) -> score`.
        mask: `(np, place, *operands) -> True if the query sees the key`.
        place: `(np, place, *operands) -> place`, if the last query is not at the last key.
        sink: `(np, *operands) -> score` of an extra key without a value.
        elements: types and limits of operands by name, as in a rule; "any" for the others.
    """

    operands: dict[str, str] = field(default_factory=dict[str, str])
    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None
    place: Callable[..., Place] | None = None
    sink: Callable[..., Any] | None = None
    elements: dict[str, str] = field(default_factory=dict[str, str])


def may_hide_all(program: Program, s: Dim, t: Dim, attributes: dict[str, Any]) -> bool:
    """True if one of s queries may see none of t keys; the last query is at the last key."""
    is_masked = program.mask is not None or program.score is not None
    is_cut = bool(attributes["causal"] or attributes["window"])
    return is_masked or (is_cut and less_equal(s, t) is not True)


def spread(np: Any, axes: str, operand: Any, groups: Any, share: Any, wide: Any) -> Any:
    """Reshapes an operand to the axes [b, g, r, s, t] of scores; axes it lacks get size 1."""
    own = axes.split()
    count = len([n for n in own if n != "..."])
    tail = list(operand.shape[operand.ndim - count :])
    sizes = dict(zip([n for n in own if n != "..."], tail, strict=True))
    heads = [groups, share] if "h" in own else [1, 1]
    lead = -1 if "..." in own else 1
    operand = operand.astype(np.int32 if _is_integer(operand) else wide)
    return operand.reshape(lead, *heads, sizes.get("s", 1), sizes.get("t", 1))


def _is_integer(array: Any) -> bool:
    return (
        not array.dtype.is_float if hasattr(array.dtype, "is_float") else array.dtype.kind in "iu"
    )


def scored(
    np: Any,
    program: Program,
    scores: Any,
    place: Place,
    operands: Sequence[Any],
    attributes: dict[str, Any],
) -> Any:
    """Returns scores [b, g, r, s, t] after soft cap, program and masks; hidden scores are -inf."""
    if attributes["softcap"]:
        scores = np.tanh(scores / attributes["softcap"]) * attributes["softcap"]
    if program.place is not None:
        place = program.place(np, place, *operands)
    if program.score is not None:
        scores = program.score(np, scores, place, *operands)
    for seen in _masks(np, program, place, operands, attributes):
        scores = np.where(seen, scores, -np.inf)
    return scores


def _masks(
    np: Any, program: Program, place: Place, operands: Sequence[Any], attributes: dict[str, Any]
) -> list[Any]:
    found: list[Any] = []
    if attributes["causal"]:
        found.append(place.column <= place.row)
    if attributes["window"]:
        found.append(place.row - place.column < attributes["window"])
    if program.mask is not None:
        found.append(program.mask(np, place, *operands))
    return found


# ---- the programs of the operators


def by_distance(np: Any, score: Any, place: Place, slopes: Any) -> Any:
    """Reduces a score by the slope of its head times the distance of its key."""
    return score + slopes * (place.column - place.row).astype(slopes.dtype)


def added(np: Any, score: Any, place: Place, bias: Any) -> Any:
    """Adds a number to each score; -inf hides a key."""
    return score + bias


def same_document(np: Any, place: Place, of_queries: Any, of_keys: Any) -> Any:
    """True if query and key are in the same document."""
    return of_queries == of_keys


def in_prefix(np: Any, place: Place, prefix: Any) -> Any:
    """True for keys in the prefix, and for keys that are not after the query."""
    return (place.column <= place.row) | (place.column < prefix)


def ancestors(np: Any, place: Place, ends: Any) -> Any:
    """True if the query is in the key's subtree; subtrees are ranges in depth-first order."""
    return (place.column <= place.row) & (place.row < ends)


def in_cache(np: Any, place: Place, lengths: Any) -> Any:
    """True for keys that are already in the cache."""
    return place.column < lengths


def at_end_of_cache(np: Any, place: Place, lengths: Any) -> Place:
    """Moves queries so that the last one is at the last key in the cache, not at its capacity."""
    return Place(place.row + (lengths - place.keys), place.column, place.keys)


PLAIN = Program()
SINKS = Program({"sinks": "h"}, sink=lambda np, sinks: sinks)
ALIBI = Program({"slopes": "h"}, score=by_distance)
BIAS = Program({"bias": "... h s t"}, score=added)
DOCUMENTS = Program({"of_queries": "... s", "of_keys": "... t"}, mask=same_document)
PREFIX = Program({"prefix": "..."}, mask=in_prefix, elements={"prefix": "any <= t"})
TREE = Program({"ends": "... t"}, mask=ancestors)
CACHED = Program(
    {"lengths": "..."},
    mask=in_cache,
    place=at_end_of_cache,
    elements={"lengths": "1 <= any <= t"},
)
