"""The rules of canonicalize about ops that only move elements, each with its near miss."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

M, X, XY, S = "%x: f32[4, 6]", "%x: f32[10]", "%x: f32[4], %y: f32[4]", "%x: f32[], %y: f32[]"
CUBE = "%x: f32[2, 3, 4]"
JOINED = "%a = concat(%x, %y) {axis=0} : f32[8]\n"
PADDED = "%a = pad(%x, 0.0:f32) {high=[2], interior=[0], low=[1]} : f32[7]\n"
FULL = "%a = broadcast(%x) {axes=[]} : f32[4, 6]\n"

REWRITES: Rewrites = {
    "reshape twice": (
        M,
        "%a = reshape(%x) : f32[24]\n%z = reshape(%a) : f32[8, 3]",
        "%z = reshape(%x) : f32[8, 3]",
    ),
    "reshape there and back": (
        M,
        "%a = reshape(%x) : f32[24]\n%z = reshape(%a) : f32[4, 6]",
        "%x",
    ),
    "transpose of equals": (
        S,
        FULL + "%z = transpose(%a) {perm=[1, 0]} : f32[6, 4]",
        "%z = broadcast(%x) {axes=[]} : f32[6, 4]",
    ),
    "constant of equals": (
        S,
        "%z = const() {value=data<f32[2], [1.0, 1.0]>} : f32[2]",
        "%z = broadcast(1.0:f32) {axes=[]} : f32[2]",
    ),
    "transposes compose": (
        CUBE,
        "%a = transpose(%x) {perm=[1, 2, 0]} : f32[3, 4, 2]\n"
        "%z = transpose(%a) {perm=[1, 2, 0]} : f32[4, 2, 3]",
        "%z = transpose(%x) {perm=[2, 0, 1]} : f32[4, 2, 3]",
    ),
    "transposes compose in their order": (
        CUBE,
        "%a = transpose(%x) {perm=[1, 2, 0]} : f32[3, 4, 2]\n"
        "%z = transpose(%a) {perm=[0, 2, 1]} : f32[3, 2, 4]",
        "%z = transpose(%x) {perm=[1, 0, 2]} : f32[3, 2, 4]",
    ),
    "broadcasts compose": (
        "%x: f32[4]",
        "%a = broadcast(%x) {axes=[0]} : f32[4, 4]\n"
        "%z = broadcast(%a) {axes=[1, 2]} : f32[4, 4, 4]",
        "%z = broadcast(%x) {axes=[1]} : f32[4, 4, 4]",
    ),
    "transposes cancel": (
        M,
        "%a = transpose(%x) {perm=[1, 0]} : f32[6, 4]\n"
        "%z = transpose(%a) {perm=[1, 0]} : f32[4, 6]",
        "%x",
    ),
    "transpose of an axis of size 1": (
        "%x: f32[1, 4]",
        "%z = transpose(%x) {perm=[1, 0]} : f32[4, 1]",
        "%z = reshape(%x) : f32[4, 1]",
    ),
    "broadcast twice": (
        "%x: f32[4]",
        "%a = broadcast(%x) {axes=[0]} : f32[4, 3]\n"
        "%z = broadcast(%a) {axes=[0, 2]} : f32[4, 2, 3]",
        "%z = broadcast(%x) {axes=[0]} : f32[4, 2, 3]",
    ),
    "broadcast adds axes of size 1": (
        "%x: f32[4]",
        "%z = broadcast(%x) {axes=[1]} : f32[1, 4]",
        "%z = reshape(%x) : f32[1, 4]",
    ),
    "broadcast of an axis of size 1": (
        "%x: f32[4, 1]",
        "%z = broadcast(%x) {axes=[0, 2]} : f32[4, 3, 1]",
        "%a = reshape(%x) : f32[4]\n%z = broadcast(%a) {axes=[0]} : f32[4, 3, 1]",
    ),
    "reshape of a broadcast adds an axis of size 1": (
        "%x: f32[4]",
        "%a = broadcast(%x) {axes=[1]} : f32[3, 4]\n%z = reshape(%a) : f32[3, 1, 4]",
        "%z = broadcast(%x) {axes=[2]} : f32[3, 1, 4]",
    ),
    "slice of all": (X, "%z = slice(%x) {limit=[10], start=[0], step=[1]} : f32[10]", "%x"),
    "slices compose": (
        X,
        "%a = slice(%x) {limit=[10], start=[2], step=[2]} : f32[4]\n"
        "%z = slice(%a) {limit=[4], start=[1], step=[1]} : f32[3]",
        "%z = slice(%x) {limit=[9], start=[4], step=[2]} : f32[3]",
    ),
    "slice of one operand of a concat": (
        XY,
        JOINED + "%z = slice(%a) {limit=[7], start=[5], step=[1]} : f32[2]",
        "%z = slice(%y) {limit=[3], start=[1], step=[1]} : f32[2]",
    ),
    "slice takes off the padding": (
        XY,
        PADDED + "%z = slice(%a) {limit=[5], start=[1], step=[1]} : f32[4]",
        "%x",
    ),
    "pad by nothing": (
        XY,
        "%z = pad(%x, 0.0:f32) {high=[0], interior=[0], low=[0]} : f32[4]",
        "%x",
    ),
    "pad with what is there": (
        S,
        "%a = broadcast(%x) {axes=[]} : f32[4]\n"
        "%z = pad(%a, %x) {high=[1], interior=[0], low=[1]} : f32[6]",
        "%z = broadcast(%x) {axes=[]} : f32[6]",
    ),
    "concats nest": (
        XY,
        JOINED + "%z = concat(%a, %x) {axis=0} : f32[12]",
        "%z = concat(%x, %y, %x) {axis=0} : f32[12]",
    ),
    "concat with nothing": (
        "%x: f32[4], %y: f32[0]",
        "%z = concat(%x, %y) {axis=0} : f32[4]",
        "%x",
    ),
    "reverse twice": (
        M,
        "%a = reverse(%x) {axes=[1]} : f32[4, 6]\n%z = reverse(%a) {axes=[1]} : f32[4, 6]",
        "%x",
    ),
    "reverse of an axis of size 1": (
        "%x: f32[1, 4]",
        "%z = reverse(%x) {axes=[0, 1]} : f32[1, 4]",
        "%z = reverse(%x) {axes=[1]} : f32[1, 4]",
    ),
    "iota of one": (
        S,
        "%z = iota() {axis=0} : i64[1, 3]",
        "%z = broadcast(0:i64) {axes=[]} : i64[1, 3]",
    ),
    "iota of several axes": (
        S,
        "%z = iota() {axis=1} : i64[2, 3]",
        "%a = iota() {axis=0} : i64[3]\n%z = broadcast(%a) {axes=[1]} : i64[2, 3]",
    ),
    "gather of equals": (
        "%x: f32[], %i: i64[5]",
        "%a = broadcast(2.0:f32) {axes=[]} : f32[4, 6]\n"
        '%z = gather(%a, %i) {rule="a! b, c -> c b"} : f32[5, 6]',
        "%z = broadcast(2.0:f32) {axes=[]} : f32[5, 6]",
    ),
    "gather of one value that is not known": (
        "%x: f32[], %i: i64[5]",
        "%a = broadcast(%x) {axes=[]} : f32[4, 6]\n"
        '%z = gather(%a, %i) {rule="a! b, c -> c b"} : f32[5, 6]',
        "%z = broadcast(%x) {axes=[]} : f32[5, 6]",
    ),
}
KEPT: Kept = {
    "zeros of two signs": (S, "%z = const() {value=data<f32[2], [0.0, -0.0]>} : f32[2]"),
    "one transpose": (M, "%z = transpose(%x) {perm=[1, 0]} : f32[6, 4]"),
    "transpose of a line": (
        "%x: f32[4]",
        "%a = broadcast(%x) {axes=[0]} : f32[4, 6]\n%z = transpose(%a) {perm=[1, 0]} : f32[6, 4]",
    ),
    "broadcast that repeats": ("%x: f32[4]", "%z = broadcast(%x) {axes=[1]} : f32[3, 4]"),
    "reshape of a broadcast merges": (
        "%x: f32[4]",
        "%a = broadcast(%x) {axes=[1]} : f32[3, 4]\n%z = reshape(%a) : f32[12]",
    ),
    "slice of a part": (X, "%z = slice(%x) {limit=[9], start=[0], step=[1]} : f32[9]"),
    "slice across a concat": (
        XY,
        JOINED + "%z = slice(%a) {limit=[5], start=[3], step=[1]} : f32[2]",
    ),
    "slice with some padding": (
        XY,
        PADDED + "%z = slice(%a) {limit=[4], start=[0], step=[1]} : f32[4]",
    ),
    "pad by one": (XY, "%z = pad(%x, 0.0:f32) {high=[1], interior=[0], low=[0]} : f32[5]"),
    "pad with another scalar": (
        S,
        "%a = broadcast(%x) {axes=[]} : f32[4]\n"
        "%z = pad(%a, %y) {high=[1], interior=[0], low=[1]} : f32[6]",
    ),
    "concats along two axes": (
        M,
        "%a = concat(%x, %x) {axis=0} : f32[8, 6]\n%z = concat(%a, %a) {axis=1} : f32[8, 12]",
    ),
    "reverse once": (M, "%z = reverse(%x) {axes=[1]} : f32[4, 6]"),
    "iota of a line": (S, "%z = iota() {axis=0} : i64[3]"),
    "gather of repeated rows": (
        "%x: f32[6], %i: i64[5]",
        "%a = broadcast(%x) {axes=[1]} : f32[4, 6]\n"
        '%z = gather(%a, %i) {rule="a! b, c -> c b"} : f32[5, 6]',
    ),
    "gather of others": (
        "%x: f32[4, 6], %i: i64[5]",
        '%z = gather(%x, %i) {rule="a! b, c -> c b"} : f32[5, 6]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("canonicalize", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_kept("canonicalize", KEPT[name])
