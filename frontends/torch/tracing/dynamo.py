"""Dynamo's capture of a callable: its settings, the functions it replaces, the scopes it sees.

Wings and packages register modules of entry point group `stack.torch_functions`. A module may have
two tables. `WRITTEN` has functions, or names of tensor methods, that are replaced before autograd
sees them. `DECOMPOSITIONS` has ATen ops, which are replaced while they are traced.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

import stack.plugins as plugins
from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.run.rejected_arguments import is_users

GROUP = "stack.torch_functions"
Decomposition = Callable[..., Any]
_TRACED: ContextVar[bool] = ContextVar("traced", default=False)

# Dynamo's settings for all captures. Not every release has the first two: no garbage collection
# after each capture, and no profiler marks in the generated code, which take as long as the rest of
# it. By default Dynamo does not trace recurrent modules.
_SETTINGS = {"run_gc_after_compile": False, "record_runtime_overhead": False, "allow_rnn": True}
# Dynamo's settings for captures of one graph, without calls.
_WHOLE = {
    "replay_side_effects": False,
    "side_effect_replay_policy": "silent",
    "specialize_int": True,
    "specialize_float": True,
    "automatic_dynamic_shapes": False,
}


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Context that silences a logger of torch, whose stack traces repeat raised errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def capturing(fn: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Context of every capture with Dynamo.

    Args:
        settings: Dynamo's settings, besides those that all captures need.
    """
    with (
        quiet(private.FAKE_LOG),
        private.dynamo_settings({**_SETTINGS, **settings}),
        nameless(fn),
        functions_traced(),
    ):
        yield


class Traced:
    """Dynamo's capture of a callable for example arguments.

    Attributes:
        root: the module whose weights the graph has as inputs; None for a function.
        graph: the Dynamo graph.
        inputs: its inputs for the example arguments.
        marks: one tensor for each of its results.
        result: what the user's callable returns if its graph returns the marks.
    """

    def __init__(self, fn: Any, args: Sequence[Any], dynamic: bool) -> None:
        self.root = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        settings = {**_WHOLE, "assume_static_by_default": not dynamic}
        with capturing(fn, settings), torch.no_grad():
            self.output: Any = private.capture_whole(fn, args)
        if self.output.backend_input is None:
            raise StackError("the function does no work on tensors: there is nothing to compile")
        self.graph: GraphModule = self.output.backend_input.graph_module
        self.marks = [torch.empty(0) for _ in self.graph.graph.output_node().args[0]]  # pyright: ignore
        self.inputs: Sequence[Any] = ()
        scope = self.output.graph_capture_output.f_globals
        surround = self.output.forward_callable(compiled_fn=self._run, extra_globals=scope)
        self.result = surround(*((self.root, *args) if self.root is not None else args))

    def _run(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Stands for the compiled graph in the code that Dynamo generates around its call."""
        self.inputs = inputs
        return tuple(self.marks)


# ---- functions written as simpler ones


class Tables(NamedTuple):
    """The tables of all registered modules.

    Attributes:
        written: replacements by function, or by name of a tensor method.
        decomposed: decompositions by ATen op.
    """

    written: dict[Any, Decomposition]
    decomposed: dict[Any, Decomposition]


@functools.cache
def tables() -> Tables:
    """Returns the replacements and decompositions; loads the modules that register them."""
    found = Tables({}, {})
    for name in plugins.names(GROUP):
        with suppress(Exception):  # `stackc env` names a broken wing
            module = plugins.load(GROUP, name)
            found.written.update(getattr(module, "WRITTEN", {}))
            found.decomposed.update(getattr(module, "DECOMPOSITIONS", {}))
    return found


@contextmanager
def functions_traced() -> Iterator[None]:
    """Context in which Dynamo infers shapes from the written functions, too."""
    tables()  # the modules may register implementations in torch
    token = _TRACED.set(True)
    try:
        yield
    finally:
        _TRACED.reset(token)


def is_traced() -> bool:
    """True while Dynamo traces for one of our captures."""
    return _TRACED.get()


def write_out(graph: GraphModule) -> None:
    """Replace written functions in a graph that Dynamo captured, and in nested graphs."""
    table = tables().written
    for module in graph.modules():
        if not isinstance(module, GraphModule):
            continue
        calls = [
            n
            for n in module.graph.nodes
            if n.op in ("call_function", "call_method") and n.target in table
        ]
        for node in calls:
            node.op, node.target = "call_function", table[node.target]
        if calls:
            module.recompile()


# ---- functions whose globals belong to no imported module, for example code run by `exec`

# To inline a function, Dynamo finds its globals by importing the module of that name. If no such
# module is imported, this fails; if another module has the name, Dynamo guards the wrong globals.
# For globals without a `__name__`, Dynamo guards the dict itself, which is correct for all of them.


@contextmanager
def nameless(fn: Any) -> Iterator[None]:
    """Hides the `__name__` of unimported globals of functions that `fn` calls.

    Globals whose `__name__` a function reads keep it: a trace would see another value.
    """
    names = [(scope, scope.pop("__name__")) for scope in unimported(fn)]
    try:
        yield
    finally:
        for scope, name in names:
            scope["__name__"] = name


def unimported(fn: Any) -> list[dict[str, Any]]:
    """Returns the globals of `fn`, and of functions it may call, that no imported module owns.

    Follows references of the user's functions: closures, globals, modules and objects. Globals
    whose `__name__` some function reads are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    readers: set[int] = set()
    seen: dict[int, Any] = {}  # keeps temporary objects alive, so that ids stay unique
    pending: list[Any] = [fn]
    while pending:
        value = pending.pop()
        if value is None or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType | ModuleType):
            scope = value.__globals__ if isinstance(value, FunctionType) else vars(value)
            if not _is_imported(scope):
                found[id(scope)] = scope
        if isinstance(value, FunctionType):
            if "__name__" in value.__code__.co_names:
                readers.add(id(value.__globals__))
            if is_users(value.__code__.co_filename):
                pending.extend(_referred(value))
        elif not isinstance(value, ModuleType):
            pending.extend(_parts(value))
    return [scope for key, scope in found.items() if key not in readers]


def _is_imported(scope: dict[str, Any]) -> bool:
    """True if globals belong to the imported module of their name, or have no name."""
    name = scope.get("__name__")
    return name is None or getattr(sys.modules.get(name), "__dict__", None) is scope


def _referred(fn: FunctionType) -> Iterator[Any]:
    """Yields objects that a function refers to: globals, closure cells, named items of both."""
    code = fn.__code__
    values = [fn.__globals__.get(name) for name in code.co_names]
    for cell in fn.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    yield getattr(fn, "__wrapped__", None)
    for value in values:
        yield value
        if isinstance(value, ModuleType) and not _is_imported(vars(value)):
            yield from (vars(value).get(name) for name in code.co_names)
        elif isinstance(value, dict):
            named = [value[key] for key in code.co_consts if isinstance(key, str) and key in value]
            yield from named or [item for item in [*value.values()] if callable(item)]


def _parts(value: Any) -> Iterable[Any]:
    """Returns the callables and objects that a value other than a function may call."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        return value.__func__, getattr(value, "__self__", None)
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, type):
        return *value.__bases__, *(vars(value).values() if _is_defined(value) else ())
    if isinstance(value, list | tuple):
        return [item for item in value if callable(item)]
    held = value.modules() if isinstance(value, torch.nn.Module) else (value,)
    return [part for h in held for part in (type(h), *_attributes(h))]


def _is_defined(cls: type) -> bool:
    """True if a class is the user's, or is not the one that its module has under its name."""
    module = sys.modules.get(cls.__module__)
    is_there = getattr(module, cls.__name__, None) is cls
    return not is_there or is_users(getattr(module, "__file__", None) or "")


def _attributes(value: Any) -> list[Any]:
    """Returns functions, methods and partials among the attributes of an object."""
    if isinstance(value, torch.Tensor):
        return []
    kinds = FunctionType | MethodType | functools.partial
    return [v for v in getattr(value, "__dict__", {}).values() if isinstance(v, kinds)]
