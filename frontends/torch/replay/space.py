"""Runs every tensor op in torch: replays a Func on torch tensors.

This gives programs from other frameworks to torch's own compilers. `replay` converts a Func to a
module of ATen ops for torch.compile and torch.export; a `TorchSpace` can also run a Func eagerly,
node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from stack.errors import StackError
from stack.frontends.torch.replay.conv import convolution
from stack.frontends.torch.replay.elementwise_ops import Tensor, TorchElementwise
from stack.frontends.torch.replay.ragged_matmul import ragged_product
from stack.frontends.torch.replay.u64 import ordered, scalar
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, decode_call, find_operator
from stack.ir.axes import Rule, parse_rule
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.ir.space import Run, einsum_text, identity
from stack.ir.types import TupleType


def sizes(node: Node) -> tuple[int, ...]:
    """Returns the shape of a node whose sizes are bound."""
    if not all(isinstance(s, int) for s in node.shape):
        raise TypeError(f"{node.type} is symbolic; bind its sizes first (Func.bind)")
    return tuple(s for s in node.shape if isinstance(s, int))


class TorchSpace(TorchElementwise):
    """Implements ops on torch tensors of one device."""

    # ---- leaves and movement

    def op_iota(self, node: Node) -> Tensor:
        axis = node.attrs["axis"]
        line = torch.arange(sizes(node)[axis], device=self.device).to(self.dtype(node.dtype))
        view = [-1 if i == axis else 1 for i in range(node.tensor.rank)]
        return line.reshape(view).expand(sizes(node))

    def op_reshape(self, node: Node, x: Tensor) -> Tensor:
        return x.reshape(sizes(node))

    def op_transpose(self, node: Node, x: Tensor) -> Tensor:
        return x.permute(node.attrs["perm"])

    def op_broadcast(self, node: Node, x: Tensor) -> Tensor:
        axes = node.attrs["axes"]
        shape = sizes(node)
        view = [shape[i] if i in axes else 1 for i in range(node.tensor.rank)]
        return x.reshape(view).expand(sizes(node))

    def op_reverse(self, node: Node, x: Tensor) -> Tensor:
        return torch.flip(x, tuple(node.attrs["axes"]))

    def op_pad(self, node: Node, x: Tensor, value: Tensor) -> Tensor:
        low, high, gaps = (node.attrs[k] for k in ("low", "high", "interior"))
        x = self._spread(x, gaps, value)
        if not any((*low, *high)):
            return x
        source = node.args[1]
        if source.op == "const" and source.dtype.kind != "c" and source.dtype.name != "u64":
            fill = source.attrs["value"].array.item()
            pads = [v for lo, hi in zip(reversed(low), reversed(high)) for v in (lo, hi)]
            return F.pad(x, pads, value=fill)
        for axis, (lo, hi) in enumerate(zip(low, high, strict=True)):
            parts = [self._block(value, x, axis, lo), x, self._block(value, x, axis, hi)]
            x = torch.cat([p for p in parts if p.shape[axis]] or [x], dim=axis)
        return x

    def _block(self, value: Tensor, x: Tensor, axis: int, size: int) -> Tensor:
        return value.expand(*x.shape[:axis], size, *x.shape[axis + 1 :])

    def _spread(self, x: Tensor, gaps: Sequence[int], value: Tensor) -> Tensor:
        """Inserts `gap` copies of the value between elements along each axis."""
        for axis, gap in enumerate(gaps):
            size = x.shape[axis]
            if not gap or size < 2:
                continue
            column = x.unsqueeze(axis + 1)
            fill = value.expand(*x.shape[: axis + 1], gap, *x.shape[axis + 1 :])
            wide = torch.cat([column, fill], dim=axis + 1).flatten(axis, axis + 1)
            x = wide.narrow(axis, 0, (size - 1) * (gap + 1) + 1)
        return x

    def op_concat(self, node: Node, *args: Tensor) -> Tensor:
        return torch.cat(args, dim=node.attrs["axis"])

    def op_gather(self, node: Node, x: Tensor, *indices: Tensor) -> Tensor:
        rule = parse_rule(node.attrs["rule"])
        marked = [i for i, a in enumerate(rule.inputs[0]) if a.mark == "!"]
        plain = {a.names[0] for a in rule.inputs[0] if a.mark != "!"}
        if len(marked) == 1 and plain.isdisjoint(a.names[0] for a in rule.inputs[1]):
            return self._take(rule, x, indices[0], marked[0])
        return x[self.grid(rule, rule.outputs[0], x, indices)]

    def _take(self, rule: Rule, x: Tensor, index: Tensor, axis: int) -> Tensor:
        """Gathers along one indexed axis that is independent of the others: rows of x."""
        rows = torch.index_select(x, axis, index.reshape(-1).to(torch.int64))
        shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
        source, index_axes = rule.inputs[0], rule.inputs[1]
        have = [a.names[0] for a in source[:axis]]
        have += [a.names[0] for a in index_axes]
        have += [a.names[0] for a in source[axis + 1 :]]
        wanted = [a.names[0] for a in rule.outputs[0]]
        return rows.reshape(shape).permute([have.index(n) for n in wanted])

    def grid(
        self, rule: Rule, frame: Any, x: Tensor, indices: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Returns one index tensor for each axis of x, broadcastable over the axes of `frame`."""
        order = [a.names[0] for a in frame]
        given = iter(zip(rule.inputs[1:], indices, strict=False))
        place: list[Tensor] = []
        for axis, size in zip(rule.inputs[0], x.shape, strict=True):
            if axis.mark == "!":
                operand, index = next(given)
                own = [a.names[0] for a in operand]
                kept = [n for n in order if n in own]
                index = index.to(torch.int64).permute([own.index(n) for n in kept])
            else:
                own = kept = [axis.names[0]]
                index = torch.arange(size, device=self.device)
            sizes = dict(zip(kept, index.shape, strict=True))
            place.append(index.reshape([sizes.get(n, 1) for n in order]))
        return tuple(place)

    def op_scatter(self, node: Node, x: Tensor, *rest: Tensor) -> Tensor:
        if node.attrs["kind"] not in ("max", "min"):
            return super().op_scatter(node, x, *rest)
        *indices, updates = rest
        x, updates = (ordered(v, node.dtype) for v in (x, updates))
        return ordered(super().op_scatter(node, x, *indices, updates), node.dtype)

    def scatter(self, x: Tensor, place: tuple[Tensor, ...], updates: Tensor, kind: str) -> Tensor:
        places = [p.expand(updates.shape) for p in place]
        x = x.contiguous()  # Inductor (2.13) writes into an expanded tensor as if it were dense
        if kind in ("set", "add") and x.dtype is not torch.bool:
            return torch.index_put(x, tuple(places), updates, accumulate=kind == "add")
        if kind in ("set", "add"):
            return self.scatter(x.to(torch.uint8), place, updates.to(torch.uint8), kind) != 0
        flat = torch.zeros_like(places[0])
        for position, size in zip(places, x.shape, strict=True):
            flat = flat * size + position
        name = {"mul": "prod", "max": "amax", "min": "amin"}[kind]
        values = x.reshape(-1).scatter_reduce(0, flat.reshape(-1), updates.reshape(-1), name)
        return values.reshape(x.shape)

    # ---- reductions and contractions

    def op_reduce(self, node: Node, x: Tensor) -> Tensor:
        axes, kind = tuple(node.attrs["axes"]), node.attrs["kind"]
        if not axes:
            return x
        if kind == "sum":
            return torch.sum(x, dim=axes, dtype=self.wide(node.dtype))
        if kind == "prod":
            for axis in sorted(axes, reverse=True):
                x = torch.prod(x, dim=axis, dtype=self.wide(node.dtype))
            return x
        if not x.numel():
            fill = scalar(identity(kind, node.dtype), node.dtype)
            return torch.full(sizes(node), fill, dtype=self.dtype(node.dtype), device=x.device)
        if kind in ("max", "min"):
            return self._extremum(node, x, axes, kind)
        if node.dtype.is_integer:
            return self._bitwise(x, axes, kind)
        test = torch.all if kind == "and" else torch.any
        for axis in sorted(axes, reverse=True):
            x = test(x, dim=axis)
        return x

    def _extremum(self, node: Node, x: Tensor, axes: Sequence[int], kind: str) -> Tensor:
        pick = torch.amax if kind == "max" else torch.amin
        return ordered(pick(ordered(x, node.dtype), dim=tuple(axes)), node.dtype)

    def _bitwise(self, x: Tensor, axes: Sequence[int], kind: str) -> Tensor:
        combine = torch.bitwise_and if kind == "and" else torch.bitwise_or
        for axis in sorted(axes, reverse=True):
            x = reduce(combine, x.unbind(axis))
        return x

    def op_argreduce(self, node: Node, x: Tensor) -> Tensor:
        pick = torch.argmax if node.attrs["kind"] == "max" else torch.argmin
        x = x.to(torch.uint8) if x.dtype is torch.bool else ordered(x, node.args[0].dtype)
        return pick(x, dim=node.attrs["axis"])

    def op_scan(self, node: Node, x: Tensor) -> Tensor:
        axis = node.attrs["axis"]
        if node.attrs["reverse"]:
            x = torch.flip(x, (axis,))
        kind = node.attrs["kind"]
        if kind in ("max", "min"):
            out = ordered(self.running(kind, ordered(x, node.dtype), axis), node.dtype)
        else:
            out = self.running(kind, x, axis)
        return torch.flip(out, (axis,)) if node.attrs["reverse"] else out

    def running(self, kind: str, x: Tensor, axis: int) -> Tensor:
        if kind in ("sum", "prod"):
            total = torch.cumsum if kind == "sum" else torch.cumprod
            small = x.dtype in (torch.bfloat16, torch.float16)
            return total(x.float() if small else x, dim=axis)
        best = torch.cummax if kind == "max" else torch.cummin
        return best(x, dim=axis).values

    def op_sort(self, node: Node, *args: Tensor) -> tuple[Tensor, ...]:
        axis, descending = node.attrs["axis"], bool(node.attrs["descending"])
        start = node.attrs.get("start", 0)
        count = node.attrs.get("first", args[0].shape[axis]) - start
        known: list[Tensor] = []  # results that the sort itself returns
        order: Tensor | None = None
        for key, source in reversed(list(zip(args, node.args))[: node.attrs["num_keys"]]):
            key = ordered(key, source.dtype)
            view = key if order is None else torch.take_along_dim(key, order, axis)
            found = torch.sort(view, dim=axis, stable=True, descending=descending)
            step = found.indices
            known = [ordered(found.values.narrow(axis, start, count), source.dtype)]
            order = step if order is None else torch.take_along_dim(order, step, axis)
        assert order is not None
        order = order.narrow(axis, start, count)
        rest = args[len(known) :]
        return (*known, *(torch.take_along_dim(a, order, axis) for a in rest))

    def op_dot(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        rule = parse_rule(node.attrs["rule"])
        is_logical = node.dtype.kind == "b"
        kind = torch.int32 if is_logical else self.dtype(node.dtype)
        first, second = ({n for axis in operand for n in axis.names} for operand in rule.inputs)
        kept = {n for axis in rule.outputs[0] for n in axis.names}
        # along an axis of one operand only, torch sums integers in 64 bits, and refuses the matmul
        is_whole = not (kind.is_floating_point or kind.is_complex)
        wide = torch.int64 if is_whole and (first ^ second) - kept else kind
        made = torch.einsum(einsum_text(rule), a.to(wide), b.to(wide))
        return made != 0 if is_logical else made.to(kind)

    def op_conv(self, node: Node, x: Tensor, w: Tensor) -> Tensor:
        if not node.tensor.size or not x.numel() or not w.numel():
            return torch.zeros(sizes(node), dtype=self.dtype(node.dtype), device=x.device)
        return convolution(node, x, w)

    def op_ragged_dot(self, node: Node, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
        return ragged_product(node, x, y, ends, self.dtype(node.dtype))

    # ---- control

    def op_cond(self, node: Node, run: Run, index: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
        if not _is_tracing(index):
            return super().op_cond(node, run, index, *args)
        # branches are pure: run all, keep one
        out = run(node.blocks[0], args)
        for number, block in enumerate(node.blocks[1:], 1):
            other = run(block, args)
            later = index.to(torch.int64) >= number
            out = tuple(torch.where(later, o, k) for o, k in zip(other, out, strict=True))
        return out

    def op_while(self, node: Node, run: Run, *args: Tensor) -> tuple[Tensor, ...]:
        if not _is_tracing(*args):
            return super().op_while(node, run, *args)
        from stack.frameworks.torch_private import while_loop_op

        def test(*values: Tensor) -> Tensor:
            return run(node.blocks[0], values)[0].clone()

        def body(*values: Tensor) -> tuple[Tensor, ...]:
            return tuple(v.clone() for v in run(node.blocks[1], values))

        loop: Any = while_loop_op
        return tuple(loop(test, body, tuple(a.clone() for a in args), ()))

    def op_opaque(self, node: Node, *args: Tensor) -> Any:
        target = str(node.attrs["target"])
        if not target.startswith("torch:"):
            raise StackError(f"{target} belongs to another framework than torch")
        positional, named = decode_call(node.attrs["call"], args)
        out = find_operator(target)(*positional, **named)
        if not isinstance(node.type, TupleType):
            return out
        return tuple(t for t in out if t is not None)


def _is_tracing(*args: Any) -> bool:
    """True while values are unknown: under torch.compile, torch.export or make_fx."""
    if torch.compiler.is_compiling():
        return True
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    from stack.frameworks.torch_private import FakeTensor

    return get_proxy_mode() is not None or any(isinstance(a, FakeTensor) for a in args)


def callable_of(func: Func, device: str | torch.device = "cpu") -> Callable[..., Any]:
    """Returns a Python function on torch tensors that computes `func`, with a tuple of results.

    Size symbols must be bound.
    """
    space = TorchSpace(device)
    types = [p.tensor for p in func.params]
    results = [r.tensor for r in func.results]

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        held = [space.enter(a, t) for a, t in zip(args, types, strict=True)]
        out = evaluate(func.body, held, space)
        return tuple(space.leave(o, t) for o, t in zip(out, results, strict=True))

    return run


def replay(func: Func, device: str | torch.device = "cpu") -> torch.fx.GraphModule:
    """Returns a module of ATen ops that computes `func`, for torch.compile and torch.export."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from stack.frameworks.torch_private import FakeTensorMode

    run = callable_of(func, device)
    fakes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    with fakes:
        inputs = [
            torch.empty(sizes(p), dtype=TORCH_DTYPE[p.dtype], device=device) for p in func.params
        ]
        return make_fx(run, tracing_mode="real")(*inputs)
