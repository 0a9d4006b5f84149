"""Pass quantize: weights that are known become packed operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.errors import UsageError
from stack.ir.builder import Builder, constant, param
from stack.ir.types import TensorType, dtype_named
from stack.ops.qgemm import pack
from stack.rewrite.pipeline import Pipeline
from stack.run.pipeline_edits import split_weights

WEIGHT = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)


def product(weight: Any, rule: str = "a b k, k n -> a b n", width: int = 128) -> stack.Func:
    """Rows by a weight `[n, k]`, stored as a layer of torch stores it."""
    b = Builder()
    x = param("x", TensorType(dtype_named("f32"), (2, 3, width)))
    held = constant(weight) if isinstance(weight, np.ndarray) else weight
    turned = b.transpose(held, perm=(1, 0))
    params = [x] if isinstance(weight, np.ndarray) else [weight, x]
    return b.func("f", params, [b.dot(x, turned, rule=rule)])


def test_a_product_with_a_constant_becomes_the_operator() -> None:
    before = product(WEIGHT)
    result = Pipeline("quantize{group=32}").run(before)
    (node,) = (n for n in result.func.nodes if n.op == "custom")
    assert node.attrs["name"] == "qgemm.w4a16"
    packed, scales = pack.w4a16(WEIGHT, 32)
    np.testing.assert_array_equal(node.args[1].attrs["value"].array, packed)
    np.testing.assert_array_equal(node.args[2].attrs["value"].array, scales)
    assert stack.parse(str(result.func)) is result.func
    x = np.random.default_rng(1).standard_normal((2, 3, 128)).astype(np.float32)
    exact, found = before.interpret(x), result.func.interpret(x)
    assert 0.01 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.15
    assert not Pipeline("quantize{group=32}").run(result.func).records[0].changed


def test_the_note_tells_size_and_error() -> None:
    (record,) = Pipeline("quantize{group=32}").run(product(WEIGHT)).records
    (note,) = record.notes
    assert "[64, 128] as qgemm.w4a16: 0.03 MB to 0.01 MB, products off by" in str(note)
    told = float(str(note).rpartition(" ")[2].rstrip("%"))
    assert 5 < told < 15


@pytest.mark.parametrize("scheme", ["w8a8_dynamic", "q8_0", "nf4", "mx", "nvfp4", "w4a16_awq"])
def test_any_operator_that_packs_is_a_scheme(scheme: str) -> None:
    result = Pipeline(f"quantize{{scheme={scheme}, group=32}}").run(product(WEIGHT))
    assert [n.attrs["name"] for n in result.func.nodes if n.op == "custom"] == [f"qgemm.{scheme}"]


@pytest.mark.parametrize(
    ("func", "options", "why"),
    [
        (product(param("w", TensorType(dtype_named("f32"), (64, 128)))), "", "it is an argument"),
        (product(WEIGHT), "group=48", "groups of 48 do not divide rows of 128 weights"),
        (product(WEIGHT), "least=10000", "8192 weights are fewer than 10000"),
        (product(WEIGHT), "group=32, worst=0.01", "more than 1.0%"),
        (product(WEIGHT, "a b k, k n -> b a n"), "group=32", "does not multiply rows by a matrix"),
    ],
)
def test_what_stays_says_why(func: stack.Func, options: str, why: str) -> None:
    result = Pipeline(f"quantize{{{options}}}").run(func, verbose=True)
    assert result.func is func
    assert any(why in miss.reason for miss in result.records[0].misses), result.records[0].misses


def test_an_operator_that_packs_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"norm\.softmax does not say .* schemes are .*w4a16"):
        Pipeline("quantize{scheme=norm.softmax}").run(product(WEIGHT))


def test_what_comes_before_the_last_pass_that_takes_weights_sees_them() -> None:
    assert split_weights("default") == ("", "default")
    assert split_weights("canonicalize,fuse") == ("", "canonicalize,fuse")
    assert split_weights("canonicalize,quantize{group=64}") == (
        "canonicalize,quantize{group=64}",
        "default",
    )
    assert split_weights("quantize,fuse") == ("quantize", "fuse")


def modules() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64, bias=False)
    )
    return made.eval().requires_grad_(False), torch.randn(5, 128)


def test_a_model_of_torch() -> None:
    """Its weights are arguments of what is compiled, packed, and the record says what that cost."""
    model, x = modules()
    compiled = stack.compile(model, x, passes="quantize{group=32}", strict=True)
    params = {str(p.attrs["name"]): str(p.type) for p in compiled.func.params}
    assert params["0.weight.packed"] == "u8[256, 64]" and params["2.weight.scales"] == "f32[64, 8]"
    assert params["0.bias"] == "f32[256]" and "0.weight" not in params
    assert compiled.run.coverage["hosted"] == 2
    assert compiled.run.stages[:3] == ["captured", "imported", "weights"]
    assert len(compiled.run["weights"].notes) == 2
    expected = model(x)
    off = (compiled(x) - expected).norm() / expected.norm()
    assert 0.01 < off < 0.2
    assert compiled(x[:2]).shape == (2, 64)  # captured again


def test_a_function_of_jax() -> None:
    jax = pytest.importorskip("jax")
    weight = jax.numpy.asarray(WEIGHT.T)
    run = lambda x: jax.numpy.tanh(x @ weight)
    x = jax.numpy.ones((4, 128)) / 8
    compiled = stack.compile(run, x, passes="quantize{scheme=q8_0}")
    assert compiled.run.coverage["hosted"] == 1
    np.testing.assert_allclose(compiled(x), run(x), atol=2e-2)


def test_bf16_weights_are_packed_from_their_values() -> None:
    torch = pytest.importorskip("torch")
    model, x = modules()
    model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    compiled = stack.compile(model, x, passes="quantize{scheme=w8a8_dynamic}")
    expected = model(x).float()
    assert (compiled(x).float() - expected).norm() / expected.norm() < 0.03
