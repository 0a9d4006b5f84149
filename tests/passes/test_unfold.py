"""unfold, and the layout before it: convolutions as products of windows, and those that stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite, func

from stack.passes import layout
from stack.rewrite import Pipeline

ATTRS = "lhs_dilation=[1, 1], low=[1, 0], rhs_dilation=[1, 2], stride=[2, 1]"
LAST = f"channels_last=true, groups=1, high=[0, 1], {ATTRS}"
PAD = (
    "%a = pad(%x, 0.0:f32) {high=[0, 0, 1, 0], interior=[0, 0, 0, 0], low=[0, 1, 0, 0]}"
    " : f32[1, 9, 9, {c}]\n"
    "%b = unfold(%a) {axis=1, dilation=[1, 2], stride=[2, 1], window=[3, 3]}"
    " : f32[1, 4, 5, 3, 3, {c}]\n"
)

PRODUCTS: Rewrites = {
    "of all channels": (
        "%x: f32[1, 8, 8, 4], %w: f32[6, 3, 3, 4]",
        f"%z = conv(%x, %w) {{{LAST}}} : f32[1, 4, 5, 6]",
        PAD.replace("{c}", "4")
        + '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 c, o k0 k1 c -> n s0 s1 o"} : f32[1, 4, 5, 6]',
    ),
    "with the weight as it lies": (
        "%x: f32[1, 8, 8, 4], %w: f32[6, 4, 3, 3]",
        "%t = transpose(%w) {perm=[0, 2, 3, 1]} : f32[6, 3, 3, 4]\n"
        f"%z = conv(%x, %t) {{{LAST}}} : f32[1, 4, 5, 6]",
        PAD.replace("{c}", "4")
        + '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 c, o c k0 k1 -> n s0 s1 o"} : f32[1, 4, 5, 6]',
    ),
    "of single channels": (
        "%x: f32[1, 8, 8, 4], %w: f32[4, 3, 3, 1]",
        f"%z = conv(%x, %w) {{{LAST.replace('groups=1', 'groups=4')}}} : f32[1, 4, 5, 4]",
        PAD.replace("{c}", "4")
        + '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 o, o k0 k1 c -> n s0 s1 o"} : f32[1, 4, 5, 4]',
    ),
}
X, PLAIN = "%x: f32[1, 4, 8, 8], %w: f32[6, 4, 3, 3]", f"groups=1, high=[0, 1], {ATTRS}"
STAYS: Kept = {
    "groups of some channels": (
        "%x: f32[1, 4, 8, 8], %w: f32[6, 2, 3, 3]",
        f"%z = conv(%x, %w) {{{PLAIN.replace('groups=1', 'groups=2')}}} : f32[1, 6, 4, 5]",
    ),
    "holes in the image": (
        X,
        "%z = conv(%x, %w) {groups=1, high=[0, 0], lhs_dilation=[2, 2], low=[0, 0],"
        " rhs_dilation=[1, 1], stride=[1, 1]} : f32[1, 6, 13, 13]",
    ),
    "a part of the image": (
        X,
        "%z = conv(%x, %w) {groups=1, high=[0, 0], lhs_dilation=[1, 1], low=[-1, 0],"
        " rhs_dilation=[1, 1], stride=[1, 1]} : f32[1, 6, 5, 6]",
    ),
    "16 bits": (X.replace("f32", "bf16"), f"%z = conv(%x, %w) {{{PLAIN}}} : bf16[1, 6, 4, 5]"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_windows(name: str) -> None:
    check_rewrite("unfold", PRODUCTS[name])


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "GATHER", 0)
    check_kept("layout{windows=true},unfold", STAYS[name])


def test_channels_stand_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where windows are multiplied; the transposes of two convolutions in a row meet."""
    monkeypatch.setattr(layout, "GATHER", 0)
    plain = "groups=1, high=[1, 1], lhs_dilation=[1, 1], low=[1, 1], rhs_dilation=[1, 1]"
    attrs = f"{plain}, stride=[1, 1]"
    check_rewrite(
        "layout{windows=true}",
        (
            "%x: f32[1, 4, 8, 8], %v: f32[4, 4, 3, 3], %w: f32[6, 4, 3, 3]",
            f"%y = conv(%x, %v) {{{attrs}}} : f32[1, 4, 8, 8]\n"
            "%r = max(%y, 0.0:f32) : f32[1, 4, 8, 8]\n"
            f"%z = conv(%r, %w) {{{attrs}}} : f32[1, 6, 8, 8]",
            "%a = transpose(%x) {perm=[0, 2, 3, 1]} : f32[1, 8, 8, 4]\n"
            "%b = transpose(%v) {perm=[0, 2, 3, 1]} : f32[4, 3, 3, 4]\n"
            f"%y = conv(%a, %b) {{channels_last=true, {attrs}}} : f32[1, 8, 8, 4]\n"
            "%r = max(%y, 0.0:f32) : f32[1, 8, 8, 4]\n"
            "%c = transpose(%w) {perm=[0, 2, 3, 1]} : f32[6, 3, 3, 4]\n"
            f"%d = conv(%r, %c) {{channels_last=true, {attrs}}} : f32[1, 8, 8, 6]\n"
            "%z = transpose(%d) {perm=[0, 3, 1, 2]} : f32[1, 6, 8, 8]",
        ),
    )


@pytest.mark.parametrize(
    "name, why",
    [
        ("groups of some channels", "its groups have several channels"),
        ("holes in the image", "its image has holes"),
        ("a part of the image", "it reads a part of its image"),
        ("16 bits", "not bf16"),
    ],
)
def test_a_library_s_says_why(name: str, why: str) -> None:
    (record,) = Pipeline("unfold").run(func(*STAYS[name])).records
    (note,) = record.notes
    assert "is a library's" in note and why in note
