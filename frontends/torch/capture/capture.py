"""Capture of a module or function: traces it into one function of weights and arguments."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from stack.errors import StackError
from stack.frameworks.torch_private import dynamo_error, pytree
from stack.frontends.torch.capture.calls import Arguments, Call, Finish, Leaf, Template
from stack.frontends.torch.graphs.eager_runs import raise_refusals
from stack.frontends.torch.importer.errors import raise_explained
from stack.frontends.torch.importer.graph import Imported, import_graph
from stack.frontends.torch.tensors.arrays import check_results, device_of, dtype_of
from stack.frontends.torch.tensors.size_symbols import lone_symbol
from stack.frontends.torch.tracing.dynamo import Traced
from stack.frontends.torch.tracing.functional import Functional, functional_graph
from stack.frontends.torch.tracing.notes import Notes, decompiled, guards_text
from stack.ir.builder import param
from stack.ir.dim import Expr
from stack.ir.func import Func
from stack.ir.node import Block, Node, unique_name
from stack.ir.types import TensorType
from stack.run.frontend import Captured


def capture(fn: Any, args: Sequence[Any], dynamic: bool = False) -> Captured:
    """Trace a module or function for example arguments."""
    arguments, args = _flattened(fn, args)
    # Dynamo traces only Python code
    is_python = isinstance(fn, torch.nn.Module | FunctionType | MethodType)
    try:
        traced = Traced(fn if is_python else lambda *args: fn(*args), args, dynamic)
    except dynamo_error() as error:
        raise_explained(error, fn, args, {})
    raise_refusals(traced.graph, traced.inputs)
    return _Assembly(fn, args, arguments, traced, functional_graph(traced)).captured()


def program_name(fn: Any) -> str:
    """Returns the name of a user's callable as an IR function name."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return "".join(c if c.isalnum() else "_" for c in name).strip("_") or "main"


# ---- arguments


def _flattened(fn: Any, args: Sequence[Any]) -> tuple[Arguments, tuple[Any, ...]]:
    """Returns the structure of the example arguments, and the arguments with distinct tensors.

    No tensor is also a global, a weight, or another argument, so every tensor becomes a parameter
    of its own. It shares the memory of the argument, or is a copy if the same tensor occurs again.
    """
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        signature = None
    names = _parameter_names(signature, len(args))
    pairs: Any
    pairs, spec = pytree.tree_flatten_with_path(tuple(args))
    leaves: list[Leaf] = []
    values: list[Any] = []
    tensors: list[torch.Tensor] = []
    tensor_names: list[str] = []
    seen: set[int] = set()
    for path, value in pairs:
        keys = (getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path[1:])
        name = ".".join([names[path[0].idx], *map(str, keys)])
        if isinstance(value, np.ndarray):
            raise TypeError(f"argument {name!r} is a NumPy array; pass torch.from_numpy")
        if not isinstance(value, torch.Tensor):
            leaves.append(Leaf(name, None, value))
            values.append(value)
            continue
        held = value.detach().clone() if id(value) in seen else value.detach()
        seen.add(id(value))
        vars(held).update(vars(value))  # for example the marks of `mark_dynamic`
        held.requires_grad_(value.requires_grad)
        leaves.append(Leaf(name, len(tensors)))
        values.append(held)
        tensors.append(held)
        tensor_names.append(name)
    arguments = Arguments(signature, spec, leaves, tensors, tensor_names)
    return arguments, pytree.tree_unflatten(values, spec)


def _parameter_names(signature: inspect.Signature | None, count: int) -> list[str]:
    """Returns the names of `count` positional arguments."""
    names: list[str] = []
    for p in signature.parameters.values() if signature is not None else ():
        if p.kind is p.VAR_POSITIONAL:
            names.extend(f"{p.name}.{i}" for i in range(count - len(names)))
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


# ---- the program


class _Assembly:
    """Orders the parameters and results of a captured program, as `stack.compile` expects them.

    Parameters are weights and constants, then arguments; results are the user's, then new values of
    inputs.
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
        root = traced.root
        is_module = isinstance(root, torch.nn.Module)
        pairs = [*root.named_parameters(), *root.named_buffers()] if is_module else []
        weights = {id(weight): name for name, weight in pairs}
        argument = {id(t): i for i, t in enumerate(arguments.tensors)}
        # by number of a placeholder, the number of the argument that it is
        self.leaf_of = {i: argument[id(v)] for i, v in enumerate(self.given) if id(v) in argument}
        self.param_names: dict[str, str] = {}
        for i, (holder, value) in enumerate(zip(self.holders, self.given, strict=True)):
            own = weights.get(id(value), made.names[i])
            is_argument = i in self.leaf_of
            name = arguments.tensor_names[self.leaf_of[i]] if is_argument else own
            self.param_names[holder.name] = name
        rank = {weight: n for n, weight in enumerate(weights)}
        bound = [i for i in range(len(self.given)) if i not in self.leaf_of]
        bound.sort(key=lambda i: rank.get(id(self.given[i]), len(rank)))
        self.order = [*bound, *sorted(self.leaf_of, key=self.leaf_of.__getitem__)]

    def captured(self) -> Captured:
        imported = import_graph(self.graph, program_name(self.fn), self.param_names, self.order)
        func, inputs, tensors = imported.func, imported.inputs, self.arguments.tensors
        bound: list[Any] = [
            self.given[source] if isinstance(source, int) else source
            for source in inputs
            if not (isinstance(source, int) and source in self.leaf_of)
        ]
        if len(func.params) < len(bound) + len(tensors):
            func = self._with_unused(func, inputs)
        for size in imported.sizes.values():
            if isinstance(size, Expr) and not _is_size_of(size, func.params):
                raise StackError(f"the size {size} comes from a number, not from a tensor's shape")
        device = "cpu"
        if imported.devices != {"cpu"} or func is not imported.func:
            device = device_of([*bound, *self.given, *tensors])
            check_results(self.graph.graph.output_node().args[0], device)  # pyright: ignore
        params = func.params[len(bound) :]
        checks = [(params.index(c.param), c) for c in imported.checks if c.param in params]
        symbols = imported.symbols if imported.symbols.symbols else None
        call = Call(self.arguments, params, checks, symbols)
        # by number of a result of the graph, its number among those that are tensors
        count = itertools.count()
        numbers = [next(count) if isinstance(o, Node) else None for o in imported.outputs]
        targets = [self.leaf_of.get(i, self.given[i]) for i in self.made.written]
        writes = [(n, target) for n, target in zip(numbers, targets) if n is not None]
        finish = Finish(call, self._template(imported, numbers), writes, imported.promises)
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

    def _with_unused(self, func: Func, inputs: Sequence[Any]) -> Func:
        """Returns the function with a parameter for every tensor argument."""
        own = {self.leaf_of[s]: p for p, s in zip(func.params, inputs) if s in self.leaf_of}
        params = [p for p in func.params if p not in own.values()]
        taken = {str(p.attrs["name"]) for p in func.params}
        counts: dict[str, int] = {}
        pairs = zip(self.arguments.tensor_names, self.arguments.tensors, strict=True)
        for i, (name, tensor) in enumerate(pairs):
            if i not in own:
                type_ = TensorType(dtype_of(tensor.dtype), tuple(tensor.shape))
                own[i] = param(unique_name(name, taken, counts), type_)
            params.append(own[i])
        body = Block(params, func.results, func.body.names, func.body.locs)
        return Func(func.name, body, func.level)

    def _template(self, imported: Imported, numbers: Sequence[int | None]) -> Template:
        """Returns the structure of the user's return value around the results of the program.

        Args:
            numbers: for each result of the graph, its number among the tensors; None for others.
        """
        skip = len(self.made.written)
        outputs = zip(numbers[skip:], imported.outputs[skip:], strict=True)
        kinds = [("fixed", value) if n is None else ("result", n) for n, value in outputs]
        made = {id(m): kind for m, kind in zip(self.traced.marks, kinds, strict=True)}
        argument = {id(t): ("argument", i) for i, t in enumerate(self.arguments.tensors)}
        leaves, spec = pytree.tree_flatten(self.traced.result)
        parts: list[tuple[str, Any]] = []
        for leaf in leaves:
            known = made.get(id(leaf)) or argument.get(id(leaf))
            is_fixed = isinstance(leaf, torch.Tensor | bool | int | float | complex | str | None)
            if known is None and not is_fixed:
                raise StackError(
                    f"the function returns a {type(leaf).__name__}; register it as a pytree"
                    " (torch.utils._pytree.register_pytree_node) or return tensors"
                )
            parts.append(known or ("fixed", leaf))
        return Template(spec, parts)

    def _notes(self, imported: Imported) -> Notes:
        """Returns guards and decompiled code of Dynamo, and what calls do besides the program."""
        found = self.traced.output.graph_capture_output
        guards = getattr(found.output_graph, "guards", None)
        notes = Notes({"guards": lambda: guards_text(guards)} if guards else {})
        bytecode = found.bytecode
        notes["decompiled"] = lambda: decompiled(bytecode)
        if imported.why or imported.checks or imported.promises:
            notes |= imported.notes()
        written = [self.holders[i].name for i in self.made.written if i not in self.leaf_of]
        if written:
            notes["written buffers"] = "\n".join(self.param_names[name] for name in written)
        return notes


def _is_size_of(size: Expr, params: Sequence[Node]) -> bool:
    """True if some parameter has an axis of a size that is a symbol."""
    return any(lone_symbol(d) == lone_symbol(size) for p in params for d in p.shape)
