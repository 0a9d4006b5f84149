"""unfold, and the layout before it: convolutions as products of windows, and those that stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite, func

from stack.passes import layout
from stack.rewrite import Pipeline
from stack.target import load

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
    "with the weight in place": (
        "%x: f32[1, 8, 8, 4], %w: f32[6, 4, 3, 3]",
        "%t = transpose(%w) {perm=[0, 2, 3, 1]} : f32[6, 3, 3, 4]\n"
        f"%z = conv(%x, %t) {{{LAST}}} : f32[1, 4, 5, 6]",
        PAD.replace("{c}", "4")
        + '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 c, o c k0 k1 -> n s0 s1 o"} : f32[1, 4, 5, 6]',
    ),
    "with the planes of an image in place": (
        "%x: f32[1, 4, 8, 8], %w: f32[6, 3, 3, 4]",
        "%t = transpose(%x) {perm=[0, 2, 3, 1]} : f32[1, 8, 8, 4]\n"
        f"%z = conv(%t, %w) {{{LAST}}} : f32[1, 4, 5, 6]",
        "%a = pad(%x, 0.0:f32) {high=[0, 0, 0, 1], interior=[0, 0, 0, 0], low=[0, 0, 1, 0]}"
        " : f32[1, 4, 9, 9]\n"
        "%b = unfold(%a) {axis=2, dilation=[1, 2], stride=[2, 1], window=[3, 3]}"
        " : f32[1, 4, 4, 5, 3, 3]\n"
        '%z = dot(%b, %w) {rule="n c s0 s1 k0 k1, o k0 k1 c -> n s0 s1 o"} : f32[1, 4, 5, 6]',
    ),
    "of many far planes, which are brought behind places": (
        "%x: f32[1, 512, 96, 96], %w: f32[6, 3, 3, 512]",
        "%t = transpose(%x) {perm=[0, 2, 3, 1]} : f32[1, 96, 96, 512]\n"
        f"%z = conv(%t, %w) {{{LAST}}} : f32[1, 48, 93, 6]",
        "%t = transpose(%x) {perm=[0, 2, 3, 1]} : f32[1, 96, 96, 512]\n"
        "%a = pad(%t, 0.0:f32) {high=[0, 0, 1, 0], interior=[0, 0, 0, 0], low=[0, 1, 0, 0]}"
        " : f32[1, 97, 97, 512]\n"
        "%b = unfold(%a) {axis=1, dilation=[1, 2], stride=[2, 1], window=[3, 3]}"
        " : f32[1, 48, 93, 3, 3, 512]\n"
        '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 c, o k0 k1 c -> n s0 s1 o"} : f32[1, 48, 93, 6]',
    ),
    "of single channels": (
        "%x: f32[1, 8, 8, 4], %w: f32[4, 3, 3, 1]",
        f"%z = conv(%x, %w) {{{LAST.replace('groups=1', 'groups=4')}}} : f32[1, 4, 5, 4]",
        PAD.replace("{c}", "4")
        + '%z = dot(%b, %w) {rule="n s0 s1 k0 k1 o, o k0 k1 c -> n s0 s1 o"} : f32[1, 4, 5, 4]',
    ),
    "in groups, with the weight in place": (
        "%x: f32[1, 8, 8, 4], %w: f32[32, 2, 3, 3]",
        "%t = transpose(%w) {perm=[0, 2, 3, 1]} : f32[32, 3, 3, 2]\n"
        f"%z = conv(%x, %t) {{{LAST.replace('groups=1', 'groups=2')}}} : f32[1, 4, 5, 32]",
        "%p = reshape(%x) : f32[1, 8, 8, 2, 2]\n"
        "%a = pad(%p, 0.0:f32) {high=[0, 0, 1, 0, 0], interior=[0, 0, 0, 0, 0],"
        " low=[0, 1, 0, 0, 0]} : f32[1, 9, 9, 2, 2]\n"
        "%b = unfold(%a) {axis=1, dilation=[1, 2], stride=[2, 1], window=[3, 3]}"
        " : f32[1, 4, 5, 3, 3, 2, 2]\n"
        "%q = reshape(%w) : f32[2, 16, 2, 3, 3]\n"
        '%d = dot(%b, %q) {rule="n s0 s1 k0 k1 g c, g o c k0 k1 -> n s0 s1 g o"}'
        " : f32[1, 4, 5, 2, 16]\n"
        "%z = reshape(%d) : f32[1, 4, 5, 32]",
    ),
    "of 16 bits, with channels that are multiplied by pairs": (
        "%x: bf16[1, 8, 8, 3], %w: bf16[6, 3, 3, 3]",
        f"%z = conv(%x, %w) {{{LAST}}} : bf16[1, 4, 5, 6]",
        "%a = pad(%x, 0.0:bf16) {high=[0, 0, 1, 1], interior=[0, 0, 0, 0], low=[0, 1, 0, 0]}"
        " : bf16[1, 9, 9, 4]\n"
        "%b = unfold(%a) {axis=1, dilation=[1, 2], stride=[2, 1], window=[3, 3]}"
        " : bf16[1, 4, 5, 3, 3, 4]\n"
        "%v = pad(%w, 0.0:bf16) {high=[0, 0, 0, 1], interior=[0, 0, 0, 0], low=[0, 0, 0, 0]}"
        " : bf16[6, 3, 3, 4]\n"
        '%z = dot(%b, %v) {rule="n s0 s1 k0 k1 c, o k0 k1 c -> n s0 s1 o"} : bf16[1, 4, 5, 6]',
    ),
}
X = "%x: f32[1, 8, 8, 4], %w: f32[6, 3, 3, 4]"
PLAIN = "channels_last=true, groups=1, high=[0, 0], lhs_dilation=[1, 1], low=[0, 0], " + (
    "rhs_dilation=[1, 1], stride=[1, 1]"
)
STAYS: Kept = {
    "narrow groups": (
        "%x: f32[1, 8, 8, 4], %w: f32[30, 3, 3, 2]",
        f"%z = conv(%x, %w) {{{PLAIN.replace('groups=1', 'groups=2')}}} : f32[1, 6, 6, 30]",
    ),
    "holes in the image": (
        X,
        f"%z = conv(%x, %w) {{{PLAIN.replace('lhs_dilation=[1, 1]', 'lhs_dilation=[2, 2]')}}}"
        " : f32[1, 13, 13, 6]",
    ),
    "a part of the image": (
        X,
        f"%z = conv(%x, %w) {{{PLAIN.replace('low=[0, 0]', 'low=[-1, 0]')}}} : f32[1, 5, 6, 6]",
    ),
    "a depth without equal blocks": (
        "%x: f32[1, 9, 9, 4099], %w: f32[64, 3, 3, 4099]",
        f"%z = conv(%x, %w) {{{PLAIN}}} : f32[1, 7, 7, 64]",
    ),
    "integers": (X.replace("f32", "i32"), f"%z = conv(%x, %w) {{{PLAIN}}} : i32[1, 6, 6, 6]"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_windows(name: str) -> None:
    check_rewrite("unfold", PRODUCTS[name])


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    check_kept("unfold", STAYS[name])


def test_channels_stand_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are multiplied with channels last; transposes between two convolutions cancel."""
    monkeypatch.setattr(layout, "_windows_pay", lambda *_: True)
    plain = "groups=1, high=[1, 1], lhs_dilation=[1, 1], low=[1, 1], rhs_dilation=[1, 1]"
    attrs = f"{plain}, stride=[1, 1]"
    check_rewrite(
        "layout{loops=cpu}",
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
        ("narrow groups", "1 of 16 lanes would idle in a group"),
        ("holes in the image", "its image has holes"),
        ("a part of the image", "it reads a part of its image"),
        ("a depth without equal blocks", "a contracted axis of 4099 has no blocks of equal size"),
        ("integers", "not i32"),
    ],
)
def test_a_library_s_says_why(name: str, why: str) -> None:
    (record,) = Pipeline("unfold").run(func(*STAYS[name])).records
    (note,) = record.notes
    assert "is a library's" in note and why in note


@pytest.mark.parametrize("target, stays", [("amx", True), ("avx512", False)])
def test_libraries_keep_what_they_have_instructions_for(target: str, stays: bool) -> None:
    before = func(X.replace("f32", "f16"), f"%z = conv(%x, %w) {{{PLAIN}}} : f16[1, 6, 6, 6]")
    made = Pipeline("unfold").run(before, target=load(target)).func
    assert ("conv" in {n.op for n in made.nodes}) == stays


@pytest.mark.parametrize(
    "places, channels, stays",
    [(16, 32, False), (9, 32, False), (4, 32, True), (16, 24, False), (16, 3, True)],
)
def test_a_library_keeps_what_does_not_fill_tiles(places: int, channels: int, stays: bool) -> None:
    """A CPU with tiles has a library for them; without tiles vectors are as fast."""
    before = func(
        f"%x: bf16[1, 6, {places + 2}, {channels}], %w: bf16[16, 3, 3, {channels}]",
        f"%z = conv(%x, %w) {{{PLAIN}}} : bf16[1, 4, {places}, 16]",
    )
    for target, kept in (("amx", stays), ("avx512", False)):
        result = Pipeline("unfold").run(before, target=load(target))
        assert ("conv" in {n.op for n in result.func.nodes}) == kept
        notes = [note for record in result.records for note in record.notes]
        assert len(notes) == kept and all("no tile of tdpbf16ps fits" in n for n in notes)


def test_a_library_s_between_products_has_its_channels_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transposed one, whose image has holes, between two of which products are made."""
    monkeypatch.setattr(layout, "_windows_pay", lambda *_: True)
    ones = "groups=1, high=[1, 1], low=[1, 1], rhs_dilation=[1, 1], stride=[1, 1]"
    plain = f"lhs_dilation=[1, 1], {ones}"
    source = func(
        "%x: f32[1, 4, 8, 8], %w: f32[4, 4, 3, 3]",
        f"%a = conv(%x, %w) {{{plain}}} : f32[1, 4, 8, 8]\n"
        f"%b = conv(%a, %w) {{lhs_dilation=[2, 2], transposed=true, {ones}}} : f32[1, 4, 15, 15]\n"
        f"%z = conv(%b, %w) {{{plain}}} : f32[1, 4, 15, 15]",
    )
    made = Pipeline("layout{loops=cpu}").run(source, check=True).func
    moved = [n for n in made.nodes if n.op == "transpose" and n.args[0].shape[0] == 1]
    assert len(moved) == 2, str(made)  # of the image, and of the result
    assert all(n.attrs["channels_last"] for n in made.nodes if n.op == "conv")
