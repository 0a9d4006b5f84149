"""Recurrent layers, encoders and torch's control flow: loops and branches of the IR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

import stack
from stack.errors import StackError
from stack.frontends import torch as frontend

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    "gru": (nn.GRU, {}),
    "gru, both ways": (nn.GRU, {"bidirectional": True}),
    "gru, all": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm": (nn.LSTM, {"bias": False}),
    "lstm, all": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    frontend.clear_runs()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True):  # torch.compile leaves them out otherwise
        yield


def layer(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    kind, options = LAYERS[name]
    return kind(4, 8, **options, dtype=dtype), torch.randn(6, 5, 4, dtype=dtype)


def results(call: Any, *args: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(call(*args)) if isinstance(t, Tensor)]


def gradients(call: Any, module: nn.Module, *args: Tensor) -> list[Tensor]:
    given = [a.clone().requires_grad_() for a in args]
    sources = [*given, *module.parameters()]
    return list(torch.autograd.grad(sum(r.sin().sum() for r in results(call, *given)), sources))


def check_native() -> None:
    coverages = [run.coverage for run in frontend.runs()]
    assert coverages
    assert all(not c["fallback"] for c in coverages)


def sampled(*quick: str) -> Any:
    """All layers; those that are not named run in the sweep."""
    names = [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS]
    return pytest.mark.parametrize("name", names)


@sampled("rnn", "lstm")
def test_layers_and_their_gradients(name: str) -> None:
    module, x = layer(name)
    call = torch.compile(module, backend="stack", options={"backend": "interpreter"})
    torch.testing.assert_close(results(call, x), results(module, x))
    torch.testing.assert_close(gradients(call, module, x), gradients(module, module, x))
    check_native()


@sampled("gru, both ways")
def test_layers_as_compiled(name: str) -> None:
    module, x = layer(name, torch.float32)
    call = stack.compile(module, x)
    assert not call.run.coverage["fallback"]
    torch.testing.assert_close(results(call, x), results(module, x))
    torch.testing.assert_close(gradients(call, module, x), gradients(module, module, x))


def test_states_are_given_and_a_batch_is_not() -> None:
    module = nn.LSTM(4, 8)
    x, h, c = torch.randn(5, 4), torch.randn(1, 8), torch.randn(1, 8)
    call = stack.compile(lambda x, h, c: module(x, (h, c)), x, h, c)
    torch.testing.assert_close(results(call, x, h, c), results(module, x, (h, c)))


def test_the_program_is_as_long_for_every_sequence() -> None:
    module = nn.GRU(4, 8)
    short, long = (len(stack.trace(module, torch.randn(n, 2, 4)).nodes) for n in (3, 1024))
    assert short == long


def test_dropout_between_layers() -> None:
    module = nn.GRU(4, 8, num_layers=2, dropout=1.0)
    x = torch.randn(5, 2, 4)
    call = torch.compile(module, backend="stack", options={"backend": "interpreter"})
    torch.testing.assert_close(results(call, x), results(module, x))


def test_packed_sequences_are_refused() -> None:
    module = nn.GRU(4, 8)
    packed = pack_padded_sequence(torch.randn(3, 2, 4), torch.tensor([3, 2]))
    rest = (packed.batch_sizes, None, None)
    with pytest.raises(StackError, match="PackedSequence"):
        stack.compile(lambda x: module(torch.nn.utils.rnn.PackedSequence(x, *rest)), packed.data)


# ---- encoders


@pytest.mark.every(5)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_encoder_layers(mask: str, norm_first: bool) -> None:
    single = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, dtype=torch.float64
    ).eval()
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    hidden = torch.zeros(3, 7, dtype=torch.bool)
    hidden[1, 4:] = True
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    given = {
        "none": {},
        "causal": {"src_mask": causal},
        "padding": {"src_key_padding_mask": hidden},
    }
    with torch.no_grad():
        call = stack.compile(lambda x: single(x, **given[mask]), x)
        assert not call.run.coverage["fallback"]
        torch.testing.assert_close(call(x), single(x, **given[mask]))


def test_encoders_and_transformers() -> None:
    x = torch.randn(2, 7, 16)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    whole = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    with torch.no_grad():
        for module, args in ((encoder.eval(), (x,)), (whole.eval(), (x, x))):
            call = stack.compile(module, *args)
            assert not call.run.coverage["fallback"]
            torch.testing.assert_close(call(*args), module(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("needs", [False, True])
def test_multi_head_attention(needs: bool, average: bool) -> None:
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(3, 7, 16)
    hidden = torch.zeros(3, 7, dtype=torch.bool)
    hidden[1, 4:] = True
    options = {"need_weights": needs, "average_attn_weights": average, "key_padding_mask": hidden}
    with torch.no_grad():
        call = stack.compile(lambda x: module(x, x, x, **options), x)
        assert not call.run.coverage["fallback"]
        torch.testing.assert_close(
            results(call, x), results(lambda x: module(x, x, x, **options), x)
        )


# ---- torch's own control flow


def test_scan() -> None:
    from torch._higher_order_ops import scan

    def decayed(x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            h = h * 0.5 + row
            return h, h.sin()

        return scan(step, x[0] * 0, x, dim=0)

    x = torch.randn(9, 3)
    call = stack.compile(decayed, x)
    assert not call.run.coverage["fallback"]
    assert "while" in call.run["imported"].text
    torch.testing.assert_close(results(call, x), results(decayed, x))


def test_while_loop() -> None:
    from torch._higher_order_ops import while_loop

    def halved(x: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.int64)
        more = lambda n, v: v.abs().sum() > 1
        return while_loop(more, lambda n, v: (n + 1, v / 2), (count, x))

    x = torch.randn(3, 4) * 100
    call = stack.compile(halved, x)
    assert not call.run.coverage["fallback"]
    for given in (x, x / 1000):
        torch.testing.assert_close(results(call, given), results(halved, given))


def test_cond() -> None:
    def either(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v * 2, (x,))

    x = torch.randn(3, 4)
    call = stack.compile(either, x)
    assert not call.run.coverage["fallback"]
    for given in (x.abs(), -x.abs()):
        torch.testing.assert_close(call(given), either(given))
