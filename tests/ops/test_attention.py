"""Attention: programs of one's own, forms that have to agree, positions, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stack
from stack.errors import RuleError, UsageError
from stack.hosted import Op, find, registry
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.types import DTYPES, TensorType
from stack.ops.attention import Program, Rope, attention, subtree_ends, variant
from stack.ops.attention.fp8 import e4m3
from stack.rewrite.pipeline import Pipeline

Array = np.ndarray


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


Q, K, V = draw(2, 4, 6, 8), draw(2, 2, 6, 8, seed=1), draw(2, 2, 6, 5, seed=2)


def softmax_of(q: Array, k: Array, v: Array, hidden: Array) -> Array:
    """By the formula, with heads of keys repeated."""
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.where(hidden, 0, np.exp(scores - scores.max(-1, keepdims=True)))
    return weights / weights.sum(-1, keepdims=True) @ v


# ---- programs


@pytest.fixture
def parity() -> Iterator[Op]:
    """A mask and a score that nobody wrote a kernel for."""
    program = Program(
        {"boost": "h s"},
        score=lambda np, score, place, boost: score * boost,
        mask=lambda np, place, boost: (place.row - place.column) % 2 == 0,
    )
    yield variant("toys.parity", program, "Queries see every other key.")
    registry._DECLARED.pop("toys.parity")


def test_a_program_of_ones_own(parity: Op) -> None:
    boost = draw(4, 6, seed=3)
    row, column = np.arange(6)[:, None], np.arange(6)
    hidden = (row - column) % 2 != 0
    expected = softmax_of(Q * boost[..., None], K, V, hidden)
    for call in (parity, lambda *xs: parity.decomposition(np, *xs, **parity.read({}))):
        np.testing.assert_allclose(call(Q, K, V, boost), expected)


def test_it_is_an_operator_of_torch(parity: Op) -> None:
    torch = pytest.importorskip("torch")
    args = [torch.from_numpy(x).requires_grad_() for x in (Q, K, V, draw(4, 6, seed=3))]
    torch.autograd.gradcheck(parity, args, fast_mode=True)
    compiled = stack.compile(lambda *xs: parity(*xs, softcap=3.0), *args, strict=True)
    torch.testing.assert_close(compiled(*args), parity(*args, softcap=3.0))


def test_a_program_has_axes_that_scores_have() -> None:
    with pytest.raises(UsageError, match="'boost' has axes 's h'"):
        variant("toys.wrong", Program({"boost": "s h"}), "")


STREAMED = {
    "attention.attention": (),
    "attention.with_sinks": (((4,), "f32"),),
    "attention.with_alibi": (((4,), "f32"),),
    "attention.with_bias": (((2, 4, 256, 256), "f32"),),
    "attention.with_documents": (((2, 256), "i32"), ((2, 256), "i32")),
    "attention.with_prefix": (((2,), "i32"),),
    "attention.with_tree": (((2, 256), "i32"),),
    "attention.with_cache": (((2,), "i32"),),
}


@pytest.mark.parametrize("name", STREAMED)
def test_each_program_becomes_a_part_of_one_stream(name: str) -> None:
    """No scores in memory: the pass derives the kernel, whatever is done to scores."""
    made, b = find(name), Builder()
    shapes = [((2, 4, 256, 64), "bf16")] * 3 + list(STREAMED[name])
    params = [
        param(n, TensorType(DTYPES[d], s)) for n, (s, d) in zip(made.operands, shapes, strict=True)
    ]
    func = b.func("f", params, custom(b, made, params, {}))
    passes = "hosted,canonicalize,fold,decompose{gpu=true},canonicalize,stream{loops=blocks}"
    found = Pipeline(passes).run(func, verify=False).func
    assert [n.op for n in found.nodes].count("stream") == 1
    outside = [n for n in found.nodes if n.op not in ("stream", "param")]
    assert not [n for n in outside if n.tensor.rank >= 2 and n.shape[-2:] == (256, 256)]


# ---- forms that have to agree


def test_one_query_is_the_last_row() -> None:
    whole = attention(Q, K, V, causal=True)
    np.testing.assert_allclose(attention(Q[..., -1:, :], K, V, causal=True), whole[..., -1:, :])


@pytest.mark.parametrize("shares", [(6,), (2, 4), (1, 2, 3)])
def test_keys_that_are_split_merge_in_any_order(shares: tuple[int, ...]) -> None:
    with_lse, merge = find("attention.with_lse"), find("attention.merge")
    whole, lse = with_lse(Q, K, V)
    ends = np.cumsum(shares)
    parts = [
        with_lse(Q, K[..., end - n : end, :], V[..., end - n : end, :])
        for n, end in zip(shares, ends)
    ]
    for order in (parts, parts[::-1]):
        outs, lses = (np.stack(x, -1) for x in zip(*order))
        found, total = merge(outs.swapaxes(-1, -2), lses)
        np.testing.assert_allclose(found, whole)
        np.testing.assert_allclose(total, lse)


def test_absorbed_weights_give_what_keys_and_values_give() -> None:
    h, d, r, c, t = 4, 6, 2, 5, 7
    q, q_rope, w_k, w_v = draw(h, 3, d), draw(h, 3, r), draw(h, c, d), draw(h, c, 3)
    latent, k_rope = draw(t, c), draw(t, r)
    expected = find("attention.mla")(q, q_rope, latent, k_rope, w_k, w_v)
    absorbed = np.einsum("hsd,hcd->hsc", q, w_k)
    out = find("attention.mla_absorbed")(absorbed, q_rope, latent, k_rope, scale=(d + r) ** -0.5)
    np.testing.assert_allclose(np.einsum("hsc,hce->hse", out, w_v), expected)


@pytest.mark.parametrize("lengths", [(5, 12), (1, 9)])
def test_pages_and_caches_hold_the_same_keys(lengths: tuple[int, int]) -> None:
    pool_k, pool_v = draw(9, 4, 2, 8), draw(9, 4, 2, 5, seed=1)
    table = np.array([[7, 2, -1], [0, 8, 3]])  # a place that no key needs may hold anything
    q = draw(2, 4, 1, 8, seed=2)
    held = np.array(lengths)
    table[0, 1:] = [2, -1] if lengths[0] > 4 else [-1, 99]
    found = find("attention.paged")(q, pool_k, pool_v, table, held)
    used = np.maximum(table, 0) % 9
    k, v = (pool[used].reshape(2, 12, 2, -1).swapaxes(1, 2) for pool in (pool_k, pool_v))
    cached = find("attention.with_cache")(q, k, v, held)
    np.testing.assert_allclose(found, cached)
    for i, n in enumerate(lengths):
        alone = attention(q[i], k[i, :, :n], v[i, :, :n])
        np.testing.assert_allclose(found[i], alone)


def test_a_tree_sees_its_ancestors() -> None:
    """Each node as if its own path had been decoded alone."""
    parents, context = [-1, 0, 1, 1, 0, -1], 3
    ends = subtree_ends(parents, context)
    assert ends.tolist() == [9, 9, 9, 8, 7, 6, 7, 8, 9]
    q, k, v = draw(2, 6, 4), draw(2, 9, 4, seed=1), draw(2, 9, 4, seed=2)
    found = find("attention.with_tree")(q, k, v, ends)
    for node in range(6):
        path, at = [node], node
        while parents[at] >= 0:
            at = parents[at]
            path.append(at)
        seen = [*range(context), *(context + n for n in sorted(path))]
        alone = attention(q[:, node : node + 1], k[:, seen], v[:, seen])
        np.testing.assert_allclose(found[:, node : node + 1], alone)


def test_bytes_of_8_bits_are_numbers() -> None:
    formats = pytest.importorskip("ml_dtypes")
    codes = np.arange(256).astype(np.uint8)
    expected = codes.view(formats.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(e4m3(np, codes), expected)


# ---- positions


KINDS = {
    "none": ("default", {}),
    "linear": ("linear", {"factor": 4.0}),
    "yarn": ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096}),
    "llama3": (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 4096,
        },
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "none"])
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    config_of = pytest.importorskip("transformers").LlamaConfig
    theirs, parameters = KINDS[kind]
    config = config_of(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": theirs, "rope_theta": 10000.0, **parameters},
    )
    expected, magnitude = utils.ROPE_INIT_FUNCTIONS[theirs](config, "cpu")
    rope = Rope(
        64,
        kind=kind,
        factor=parameters["factor"],
        trained=4096,
        fast=4.0 if kind == "llama3" else 32.0,
    )  # pyright: ignore
    np.testing.assert_allclose(rope.frequencies(), expected.numpy(), rtol=1e-5)
    assert rope.magnitude == pytest.approx(magnitude)


def test_the_slowest_pair_of_ntk_shrinks_by_the_factor_and_the_fastest_stays() -> None:
    plain, ntk = Rope(64).frequencies(), Rope(64, kind="ntk", factor=4.0).frequencies()
    assert ntk[0] == plain[0]
    np.testing.assert_allclose(ntk[-1], plain[-1] / 4)


def test_scores_of_turned_vectors_depend_on_distance_alone() -> None:
    rope, width = find("attention.rope"), 8
    q, k = draw(1, 1, width), draw(1, 1, width, seed=1)

    def score(row: int, column: int) -> float:
        turned = (rope(x, *Rope(width).tables(np.array([p]))) for x, p in ((q, row), (k, column)))
        return float(np.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(105, 100), rel=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), rel=1e-2)


# ---- what is refused

POOL = np.zeros((9, 4, 2, 8), np.float32)
ONE = np.zeros((2, 4, 1, 8), np.float32)
SOME = np.zeros((2, 6, 8), np.float32)
REFUSED = {
    "misaligned heads": (
        "attention.attention",
        (np.zeros((3, 6, 8)), np.zeros((2, 6, 8)), np.zeros((2, 6, 8))),
        {},
        "size 3 .*'q'.* product of g=2, r=1",
    ),
    "no keys": (
        "attention.attention",
        (np.zeros((2, 1, 8)), np.zeros((2, 0, 8)), np.zeros((2, 0, 8))),
        {},
        "'k' has size 0 along 't'",
    ),
    "no queries": ("attention.attention", (SOME[:, :0], SOME, SOME), {}, "'q' has no queries"),
    "a negative window": ("attention.attention", (SOME,) * 3, {"window": -1}, "'window'"),
    "odd heads": (
        "attention.rope",
        (np.zeros((2, 3, 7)), np.zeros((3, 3)), np.zeros((3, 3))),
        {},
        "'x' has heads of 7",
    ),
    "too many pairs": (
        "attention.rope",
        (np.zeros((2, 3, 6)), np.zeros((3, 4)), np.zeros((3, 4))),
        {},
        "'cos' rotates 4 pairs",
    ),
    "a page outside": (
        "attention.paged",
        (ONE, POOL, POOL, np.array([[0, 9], [1, 2]]), np.array([5, 3])),
        {},
        "'table' names page 9: its pool has pages 0 to 8",
    ),
    "a page below": (
        "attention.paged",
        (ONE, POOL, POOL, np.array([[-1, 0], [1, 2]]), np.array([5, 3])),
        {},
        "'table' names page -1",
    ),
    "more keys than pages": (
        "attention.paged",
        (ONE, POOL, POOL, np.array([[0, 1], [1, 2]]), np.array([5, 9])),
        {},
        "'lengths' has 9: a sequence has 1 to 8 keys",
    ),
    "a sequence of no keys": (
        "attention.paged",
        (ONE, POOL, POOL, np.array([[0, 1], [1, 2]]), np.array([5, 0])),
        {},
        "'lengths' has 0",
    ),
    "a cache that is too short": (
        "attention.with_cache",
        (ONE, *[np.zeros((2, 2, 6, 8), np.float32)] * 2, np.array([7, 1])),
        {},
        "'lengths' has 7, its rule asks for 1 <= any <= t, where t is 6",
    ),
    "subtrees that cross": (
        "attention.with_tree",
        (SOME[:, :3], SOME[:, :3], SOME[:, :3], np.array([2, 3, 3])),
        {},
        "'ends': the subtrees of keys 0 and 1 cross",
    ),
    "a subtree that ends before it begins": (
        "attention.with_tree",
        (SOME[:, :3], SOME[:, :3], SOME[:, :3], np.array([3, 1, 3])),
        {},
        "'ends' has 1",
    ),
    "scales of other heads": (
        "attention.fp8",
        (*[np.zeros((2, 6, 8), np.uint8)] * 3, np.ones(3), np.ones(2), np.ones(2)),
        {},
        "'q_scale'",
    ),
    "a scale that nobody knows": (
        "attention.mla_absorbed",
        (np.zeros((2, 1, 6)), np.zeros((2, 1, 2)), np.zeros((5, 6)), np.zeros((5, 2))),
        {},
        "'scale' is needed",
    ),
    "heads that do not share states": (
        "scan.linear_attention",
        (*[np.zeros((3, 4, 8))], *[np.zeros((2, 4, 8))] * 2, np.zeros((2, 4, 1)), np.zeros((2, 4)),
         np.zeros((2, 8, 8))),
        {},
        "size 3 .*'q'.* product of g=2, r=1",
    ),
    "a decay of some features": (
        "scan.linear_attention",
        (*[np.zeros((2, 4, 8))] * 3, np.zeros((2, 4, 3)), np.zeros((2, 4)), np.zeros((2, 8, 8))),
        {},
        "'log_decay' has 3 features",
    ),
    "a chunk that is no power of two": (
        "scan.gla",
        (*[np.zeros((2, 4, 8))] * 4, np.zeros((2, 8, 8))),
        {"chunk": 3},
        "'chunk' must be a power of two, not 3",
    ),
    "no steps": (
        "scan.gla",
        (*[np.zeros((2, 0, 8))] * 4, np.zeros((2, 8, 8))),
        {},
        "'q' has no steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_told_by_name_before_anything_runs(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, arrays, attributes, told = REFUSED[what]
    op = find(name)
    with pytest.raises(RuleError, match=told):
        op(*arrays, **attributes)
    torch = pytest.importorskip("torch")
    from stack.frontends.torch.hosted import operators as hosted

    def nothing(*_: Any) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(hosted, "_replay", nothing)
    with pytest.raises(RuleError, match=told):
        op(*map(torch.from_numpy, arrays), **attributes)


@pytest.mark.parametrize("what", ["a page outside", "misaligned heads", "no steps"])
def test_jax_refuses_the_same(what: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    name, arrays, attributes, told = REFUSED[what]
    with pytest.raises(RuleError, match=told):
        find(name)(*map(jnp.asarray, arrays), **attributes)


@pytest.mark.parametrize(
    ("parents", "told"),
    [([0], "0 is not a node before 0"), ([-1, 2, -1], "2 is not a node before 1"),
     ([-1, -1, 0], "node 1 is not in depth-first order")],
)  # fmt: skip
def test_trees_that_are_none(parents: list[int], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        subtree_ends(parents, 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"width": 7}, "'width'"), ({"width": 8, "factor": 0.5}, "'factor'")],
)
def test_frequencies_that_are_none(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Rope(**arguments)
