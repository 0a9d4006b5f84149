"""Recurrent layers as scans over time: `nn.RNN`, `nn.GRU`, `nn.LSTM` and their functions.

Torch's own decompositions unroll the cell for each step of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.tracing.dynamo import is_traced

States = tuple[Tensor, ...]


# ---- cells: take states, the transformed input, and weights; return the next states


def _elman(activation: Callable[[Tensor], Tensor]) -> Callable[..., States]:
    def cell(h: Tensor, x: Tensor, weight: Tensor, *bias: Tensor) -> States:
        return (activation(x + _linear(h, weight, *bias)),)

    return cell


def _gru(h: Tensor, x: Tensor, weight: Tensor, *bias: Tensor) -> States:
    own, given = _linear(h, weight, *bias).chunk(3, -1), x.chunk(3, -1)
    reset, keep = ((a + b).sigmoid() for a, b in zip(own[:2], given[:2], strict=True))
    new = (given[2] + own[2] * reset).tanh()
    return ((h - new) * keep + new,)


def _lstm(h: Tensor, c: Tensor, x: Tensor, weight: Tensor, *more: Tensor) -> States:
    projection = more[-1:] if more and more[-1].dim() == 2 else ()
    bias = more[: len(more) - len(projection)]
    enter, forget, new, out = (x + _linear(h, weight, *bias)).chunk(4, -1)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    h = out.sigmoid() * c.tanh()
    return (h @ projection[0] if projection else h), c


def _linear(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    return torch.addmm(bias[0], x, weight) if bias else x @ weight


# ---- layers


def _network(
    cell: Callable[..., States], x: Tensor, states: States, params: Sequence[Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the outputs of the last layer, then the final states of all layers, stacked."""
    x = x.transpose(0, 1) if batch_first else x
    weights = _by_layer(params, len(params) // (num_layers * (1 + bidirectional)), has_biases)
    starts = iter(zip(*(s.unbind(0) for s in states), strict=True))
    ends: list[States] = []
    for layer in range(num_layers):
        if layer and train:
            x = torch.dropout(x, dropout, train=True)
        sides: list[Tensor] = []
        for is_back in (False, True)[: 1 + bidirectional]:
            out, last = _layer(cell, x, next(starts), next(weights), is_back)
            sides.append(out)
            ends.append(last)
        x = torch.cat(sides, -1) if bidirectional else sides[0]
    out = x.transpose(0, 1) if batch_first else x
    return out, *(torch.stack(column) for column in zip(*ends, strict=True))


Weights = tuple[tuple[Tensor, Tensor | None], list[Tensor]]


def _by_layer(params: Sequence[Tensor], count: int, has_biases: bool) -> Iterator[Weights]:
    """Yields per layer and direction the input weights, then the transposed cell weights."""
    for start in range(0, len(params), count):
        enter, own, *more = params[start : start + count]
        biases = more[:2] if has_biases else []
        projection = more[len(biases) :]
        yield (
            (enter, biases[0] if biases else None),
            [own.t(), *biases[1:], *(p.t() for p in projection)],
        )


def _layer(
    cell: Callable[..., States], x: Tensor, start: States, weights: Weights, is_back: bool
) -> tuple[Tensor, States]:
    enter, own = weights
    given = F.linear(x, *enter)
    count = len(start)

    def step(*values: Tensor) -> list[Tensor]:
        after = cell(*values)
        return [*after, after[0].clone()]  # a result may not share memory with another

    found: Any = private.scan(step, start, (given.flip(0) if is_back else given,), tuple(own))
    out = found[count]
    return out.flip(0) if is_back else out, tuple(found[:count])


# ---- torch's functions


def _function(cell: Callable[..., States]) -> Callable[..., tuple[Tensor, ...]]:
    def run(x: Tensor, states: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
        if not isinstance(rest[0], bool):
            raise StackError("a PackedSequence is not compiled; pad it (pad_packed_sequence)")
        states = (states,) if isinstance(states, Tensor) else tuple(states)
        return _network(cell, x, states, params, *rest)

    return run


WRITTEN: dict[Any, Callable[..., Any]] = {
    torch.gru: _function(_gru),
    torch.lstm: _function(_lstm),
    torch.rnn_tanh: _function(_elman(torch.tanh)),
    torch.rnn_relu: _function(_elman(torch.relu)),
}


def _chosen(scanned: Callable[..., Any], repeated: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (scanned if is_traced() else repeated)(*args)


for _function_, _scanned in WRITTEN.items():
    _op = getattr(torch.ops.aten, _function_.__name__).input
    private.replace_composite(_op, partial(_chosen, _scanned))
