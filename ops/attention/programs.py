"""What attention does to its scores: programs on one score, by the place where it stands.

A program is elementwise over batch, head, query and key. Its operands say which of these they have
(`"... h"`, `"... s"`, `"t"`), and come to it with axes [b, g, r, s, t]: g heads of keys, each of
which serves r heads of queries. It is traced into the IR with the rest of the decomposition, so
that a mask of one's own becomes part of the kernel. Source: Dong et al., "FlexAttention", 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.ir.dim import Dim, less_equal

NAMES = ("...", "h", "s", "t")


@dataclass(frozen=True)
class Place:
    """Where scores stand: the position of the query among the keys, and the number of the key.

    `keys` is how many there are.
    """

    row: Any
    column: Any
    keys: Any


@dataclass(frozen=True)
class Program:
    """What is done to scores, and who sees whom. The result of a query that sees no key is 0.

    Attributes:
        operands: axes by name, of "... h s t" in this order.
        score: `(np, score, place, *operands) -> score`.
        mask: `(np, place, *operands) -> whether the query sees the key`.
        place: `(np, place, *operands) -> place`, where queries do not end with the last key.
        sink: `(np, *operands) -> score` of one more key, without a value.
        elements: of operands by name, as a rule says it: types and limits; "any" for the others.
    """

    operands: dict[str, str] = field(default_factory=dict[str, str])
    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None
    place: Callable[..., Place] | None = None
    sink: Callable[..., Any] | None = None
    elements: dict[str, str] = field(default_factory=dict[str, str])


def may_hide_all(program: Program, s: Dim, t: Dim, attributes: dict[str, Any]) -> bool:
    """Whether one of s queries may see none of t keys: the last query stands at the last key."""
    is_masked = program.mask is not None or program.score is not None
    is_cut = bool(attributes["causal"] or attributes["window"])
    return is_masked or (is_cut and less_equal(s, t) is not True)


def spread(np: Any, axes: str, operand: Any, groups: Any, share: Any, wide: Any) -> Any:
    """An operand with the axes [b, g, r, s, t] of scores, of size 1 where it has none."""
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
    """Scores [b, g, r, s, t] after soft cap, program and masks; -inf where nothing is seen."""
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
    """A score loses the slope of its head times the distance of its key."""
    return score + slopes * (place.column - place.row).astype(slopes.dtype)


def added(np: Any, score: Any, place: Place, bias: Any) -> Any:
    """A number is added to each score; -inf hides a key."""
    return score + bias


def same_document(np: Any, place: Place, of_queries: Any, of_keys: Any) -> Any:
    """Queries see keys of their own document."""
    return of_queries == of_keys


def in_prefix(np: Any, place: Place, prefix: Any) -> Any:
    """All queries see the prefix; after it they see what is not after them."""
    return (place.column <= place.row) | (place.column < prefix)


def ancestors(np: Any, place: Place, ends: Any) -> Any:
    """A query sees the keys whose subtree it is in; subtrees are ranges in depth-first order."""
    return (place.column <= place.row) & (place.row < ends)


def in_cache(np: Any, place: Place, lengths: Any) -> Any:
    """A key that the cache holds already."""
    return place.column < lengths


def at_end_of_cache(np: Any, place: Place, lengths: Any) -> Place:
    """Queries end with the last key that the cache holds, not with the last place in it."""
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
