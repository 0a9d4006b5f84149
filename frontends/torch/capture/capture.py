"""Capture of a module or function: traces it into one function of weights and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from stack.errors import StackError
from stack.frameworks.torch_private import dynamo_error, pytree
from stack.frontends.torch.capture.calls import (
    Arguments,
    Call,
    Finish,
    Template,
    program_name,
)
from stack.frontends.torch.graphs.refusals import raise_refusals
from stack.frontends.torch.importer.errors import raise_explained
from stack.frontends.torch.importer.graph import Imported, import_graph
from stack.frontends.torch.tensors.arrays import check_results, device_of, dtype_of
from stack.frontends.torch.tensors.size_symbols import lone_symbol
from stack.frontends.torch.tracing.layouts import lay_out_as_eager
from stack.frontends.torch.tracing.notes import Notes, graph_notes
from stack.frontends.torch.tracing.tracer import Functional, Traced, functional_graph
from stack.ir.builder import param
from stack.ir.dim import Expr
from stack.ir.func import Func
from stack.ir.node import Block, Node, unique_name
from stack.ir.types import TensorType
from stack.run.frontend import Captured


def capture(fn: Any, args: Sequence[Any], dynamic: bool = False) -> Captured:
    """Trace a module or function for example arguments."""
    args = _distinct(args)
    arguments = Arguments(fn, args)
    try:
        traced = Traced(_traceable(fn), args, dynamic)
    except dynamo_error() as error:
        raise_explained(error, fn, args, {})
    raise_refusals(traced.graph, lambda: traced.inputs(args))
    lay_out_as_eager(traced.graph, lambda: traced.inputs(args))
    return _Assembly(fn, args, arguments, traced, functional_graph(traced, args)).captured()


def _traceable(fn: Any) -> Any:
    """Wraps a callable without Python code in a function: Dynamo traces only Python code."""
    if isinstance(fn, torch.nn.Module | FunctionType | MethodType):
        return fn
    return lambda *args: fn(*args)


def _distinct(args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns arguments as distinct tensors: none is also a global, a weight, or another argument.

    So every tensor becomes a parameter of its own. It shares the memory of the argument, or is a
    copy if the same tensor occurs again.
    """
    seen: set[int] = set()

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        held = value.detach().clone() if id(value) in seen else value.detach()
        seen.add(id(value))
        vars(held).update(vars(value))  # for example the marks of `mark_dynamic`
        return held.requires_grad_(value.requires_grad)

    return pytree.tree_map(fresh, tuple(args))


class _Assembly:
    """Orders the parameters and results of a captured program, as `stack.compile` expects them.

    Parameters are weights, then arguments; results are the user's, then new values of inputs.
    """

    def __init__(
        self, fn: Any, args: tuple[Any, ...], arguments: Arguments, traced: Traced,
        made: Functional,
    ) -> None:  # fmt: skip
        self.fn, self.args, self.arguments, self.traced = fn, args, arguments, traced
        self.made, self.graph, self.given = made, made.graph, made.inputs
        self.holders = made.graph.graph.find_nodes(op="placeholder")
        if len(self.holders) != len(self.given):
            raise StackError(f"{len(self.given)} inputs were traced as {len(self.holders)}")

    def captured(self) -> Captured:
        self._place()
        imported = import_graph(self.graph, program_name(self.fn), self.param_names, self.order)
        func, bound = self._with_unused(imported)
        loose = [e for e in imported.sizes.values() if isinstance(e, Expr)]
        for size in loose:
            if not any(lone_symbol(d) == lone_symbol(size) for p in func.params for d in p.shape):
                raise StackError(f"the size {size} comes from a number, not from a tensor's shape")
        call = Call(self.arguments, func, len(bound), imported.checks, imported.symbols)
        finish = Finish(call, self._template(imported), self._writes(imported), imported.promises)
        device = device_of([*bound, *self.given, *self.arguments.tensors])
        check_results(self.graph.graph.output_node().args[0], device)  # pyright: ignore
        return Captured(
            func=func,
            make_text=lambda: self.graph.print_readable(print_output=False, colored=False),
            bound=bound,
            flatten=call,
            unflatten=finish,
            original=self.fn,
            args=self.args,
            notes=self._notes(imported),
            arguments=tuple(self.arguments.tensor_names),
            device=device,
        )

    def _place(self) -> None:
        """Computes the order of the graph's placeholders: weights and constants, then arguments.

        Also their names, and for those that are arguments the number of the argument.
        """
        leaf = {id(t): i for i, t in enumerate(self.arguments.tensors)}
        root = self.traced.root
        is_module = isinstance(root, torch.nn.Module)
        pairs = [*root.named_parameters(), *root.named_buffers()] if is_module else []
        named = {id(weight): name for name, weight in pairs}
        self.leaf_of: dict[int, int] = {}
        self.param_names: dict[str, str] = {}
        bound: list[int] = []
        argument_names = self.arguments.tensor_names
        for i, (holder, value) in enumerate(zip(self.holders, self.given, strict=True)):
            if id(value) in leaf:
                self.leaf_of[i] = leaf[id(value)]
                self.param_names[holder.name] = argument_names[leaf[id(value)]]
            else:
                bound.append(i)
                self.param_names[holder.name] = named.get(id(value), self.made.names[i])
        rank = {weight: n for n, weight in enumerate(named)}
        bound.sort(key=lambda i: rank.get(id(self.given[i]), len(rank)))
        self.order = [*bound, *sorted(self.leaf_of, key=self.leaf_of.__getitem__)]

    def _with_unused(self, imported: Imported) -> tuple[Func, list[torch.Tensor]]:
        """Returns the function with a parameter for every tensor argument, and bound tensors."""
        func = imported.func
        bound: list[torch.Tensor] = []
        own: dict[int, Node] = {}
        params: list[Node] = []
        for p, source in zip(func.params, imported.inputs, strict=True):
            if isinstance(source, int) and source in self.leaf_of:
                own[self.leaf_of[source]] = p
                continue
            params.append(p)
            bound.append(self.given[source] if isinstance(source, int) else source)  # pyright: ignore
        taken = {str(p.attrs["name"]) for p in func.params}
        counts: dict[str, int] = {}
        for i, (name, tensor) in enumerate(
            zip(self.arguments.tensor_names, self.arguments.tensors, strict=True)
        ):
            if i not in own:
                type_ = TensorType(dtype_of(tensor.dtype), tuple(tensor.shape))
                own[i] = param(unique_name(name, taken, counts), type_)
            params.append(own[i])
        body = Block(params, func.results, func.body.names, func.body.locs)
        return Func(func.name, body, func.level), bound

    # ---- results

    def _writes(self, imported: Imported) -> list[tuple[int, Any]]:
        """Returns pairs (result, target): which result is copied to which input after a call.

        `result` is a number among the results; a target is a bound tensor or an argument's number.
        """
        targets = [self.leaf_of.get(i, self.given[i]) for i in self.made.written]
        numbers = _result_numbers(imported.outputs)
        return [(n, target) for n, target in zip(numbers, targets) if n is not None]

    def _template(self, imported: Imported) -> Template:
        skip = len(self.made.written)
        outputs = imported.outputs[skip:]
        numbers = _result_numbers(imported.outputs)[skip:]
        marks = [torch.empty(0) for _ in outputs]
        shape = self.traced.result(self.args, marks)
        leaves, spec = pytree.tree_flatten(shape)
        place = {id(m): i for i, m in enumerate(marks)}
        argument = {id(t): i for i, t in enumerate(self.arguments.tensors)}
        parts: list[tuple[str, Any]] = []
        for leaf in leaves:
            if id(leaf) in place:
                number = numbers[place[id(leaf)]]
                value = outputs[place[id(leaf)]]
                parts.append(("fixed", value) if number is None else ("result", number))
            elif id(leaf) in argument:
                parts.append(("argument", argument[id(leaf)]))
            elif isinstance(leaf, torch.Tensor | bool | int | float | complex | str | None):
                parts.append(("fixed", leaf))
            else:
                raise StackError(
                    f"the function returns a {type(leaf).__name__}; register it as a pytree"
                    " (torch.utils._pytree.register_pytree_node) or return tensors"
                )
        return Template(spec, parts)

    def _notes(self, imported: Imported) -> Notes:
        notes = graph_notes(self.traced.output)
        notes |= imported.notes()
        written = [self.holders[i].name for i in self.made.written if i not in self.leaf_of]
        if written:
            notes["written buffers"] = "\n".join(self.param_names[name] for name in written)
        return notes


def _result_numbers(outputs: Sequence[Any]) -> list[int | None]:
    """For each output, its number among the tensor outputs; None for others."""
    numbers: list[int | None] = []
    count = 0
    for value in outputs:
        numbers.append(count if isinstance(value, Node) else None)
        count += isinstance(value, Node)
    return numbers
