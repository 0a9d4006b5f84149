"""Delayed differentiation: a graph's backward pass is traced when gradients are first asked for.

If the backward pass gets only the arguments of the forward pass, the forward pass is the same with
and without gradients. Tracing AOTAutograd's joint graph takes half of a compilation and serves only
the backward pass; many programs never run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from stack.cpython import undisturbed
from stack.frameworks import torch_private as private
from stack.frontends.torch.program.compiled_graph import Graph, boxed
from stack.frontends.torch.tensors.random_ops import draws
from stack.frontends.torch.tracing.functional import plain_tracing
from stack.frontends.torch.training.saved_tensors import clones_input
from stack.phases import phase

# Methods that read or change what requires a gradient.
_METHODS = frozenset({"backward", "detach_", "register_hook", "requires_grad_", "retain_grad"})
# Saved for the backward pass; torch frees it after the last one, which detects a second pass.
_NOTHING = torch.empty(0)


def takes_gradients(gm: GraphModule) -> bool:
    """True if some value in a Dynamo graph requires a gradient."""
    return torch.is_grad_enabled() and any(
        getattr(value, "requires_grad", False)
        for node in gm.graph.nodes
        if node.op != "output"
        for value in private.pytree.tree_leaves(node.meta.get("example_value"))
    )


def is_late(gm: GraphModule, examples: Sequence[Any]) -> bool:
    """True if a Dynamo graph computes the same without gradients, so they can be delayed."""
    has_versions = all(isinstance(x, torch.Tensor) and not x.is_inference() for x in examples)
    return has_versions and not any(map(_is_about_gradients, gm.graph.nodes))


def _is_about_gradients(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    module = str(getattr(node.target, "__module__", ""))
    return node.op == "call_function" and private.is_of_gradients(module)


def repeats(graph: GraphModule) -> bool:
    """True if a backward pass can compute these ATen ops again with the same results.

    It cannot redraw the same random numbers, nor recover the old value of a cloned input.
    """
    return not any(draws(node.target) or clones_input(node) for node in graph.graph.nodes)


class Late:
    """Calls a graph compiled without gradients, and compiles its backward pass on first use.

    Attributes:
        forward: computes the results.
        derive: compiles with AOTAutograd for given arguments.
        differ: for each result, whether it has a gradient.
    """

    def __init__(
        self, gm: GraphModule, forward: Graph, derive: Callable[..., Callable[..., Any]]
    ) -> None:
        self.gm = gm
        self.forward = forward
        self.derive = derive
        results: Any = gm.graph.output_node().args[0]
        self.differ = [bool(r.meta["example_value"].requires_grad) for r in results]
        self.read: Sequence[int] = range(forward.inputs)  # arguments that the backward pass reads
        self.derived: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        derived = self.derived
        if derived is not None:
            return derived(*args)
        # hooks on saved tensors count them, and the count has to be the same in all calls
        if private.has_saved_tensor_hooks():
            return self.compiled(args)(*args)
        return _Late.apply(self, *args)

    @undisturbed
    def compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        """Returns the callable with gradients, compiled by AOTAutograd at the first use."""
        if self.derived is None:
            with (
                private.compile_lock(),
                phase("trace"),
                plain_tracing(),
                torch.enable_grad(),
                private.without_autocast(),
                private.without_modes(),
            ):
                if self.derived is None:
                    self.derived = self.derive(self.gm, args)
        return self.derived

    def again(self, graph: GraphModule) -> Callable[[list[Any]], list[Any]] | None:
        """Returns a stand-in for AOTAutograd's forward graph: runs the graph compiled before.

        It returns the results, then the arguments that the backward pass reads. None if the
        backward pass saves values that are not arguments.
        """
        count = len(self.differ)
        outputs: Any = graph.graph.output_node().args[0]
        places = {n: i for i, n in enumerate(graph.graph.find_nodes(op="placeholder"))}
        kept = outputs[count:]
        if len(places) != self.forward.inputs or any(n not in places for n in kept):
            return None
        self.read = read = [places[n] for n in kept]
        forward = self.forward

        def call(args: list[Any]) -> list[Any]:
            return [*forward([*args]), *(args[i] for i in read)]

        return boxed(call)

    def gradients(self, given: Sequence[Any], wanted: Sequence[bool], versions: Sequence[int],
                  tangents: Sequence[Any]) -> list[Any]:  # fmt: skip
        """Returns gradients of a call made before differentiation, by repeating the call."""
        further = torch.is_grad_enabled()  # torch reports second derivatives as unsupported
        apart = [x.detach().requires_grad_(w) for x, w in zip(given, wanted, strict=True)]
        fresh = given if further else apart
        derived = self.compiled(apart)
        for i in self.read:
            if given[i]._version != versions[i]:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an"
                    f" inplace operation: argument {i} of {self.forward.target}, of shape"
                    f" {tuple(given[i].shape)}, is at version {given[i]._version}, and was at"
                    f" {versions[i]} when the program was called; write to it after the backward"
                    " pass"
                )
        with torch.enable_grad():
            found = derived(*fresh)
        pairs = [p for p, d in zip(zip(found, tangents, strict=True), self.differ) if d]
        made = iter(
            torch.autograd.grad(
                [f for f, _ in pairs],
                [x for x, w in zip(fresh, wanted, strict=True) if w],
                [t for _, t in pairs],
                create_graph=further,
                allow_unused=True,
            )
        )
        return [next(made) if w else None for w in wanted]


class _Late(torch.autograd.Function):
    """One call of a graph that has not been differentiated yet."""

    @staticmethod
    def forward(ctx: Any, late: Late, *args: Any) -> Any:
        found = late.forward([*args])
        ctx.late, ctx.given = late, args
        ctx.versions = [x._version for x in args]
        ctx.save_for_backward(_NOTHING)
        ctx.mark_non_differentiable(*(f for f, d in zip(found, late.differ, strict=True) if not d))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        _ = ctx.saved_tensors  # raises if an earlier backward pass freed the saved tensors
        gradients: Any = torch.compiler.disable(ctx.late.gradients, reason="it derives a graph")
        return None, *gradients(ctx.given, ctx.needs_input_grad[1:], ctx.versions, tangents)
