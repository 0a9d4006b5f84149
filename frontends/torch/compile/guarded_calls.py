"""The result of `stack.compile` for a torch program; calls go through Dynamo and AOTAutograd.

Dynamo guards the assumptions of a trace and replays side effects. AOTAutograd's wrappers preserve
aliases, mutation and gradients. Both call our compiled graphs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from stack.calls.recapture import MANY_CHANGES, mismatch
from stack.cpython import held_back
from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.compile.cache_entries import Entries
from stack.frontends.torch.compile.dynamo_backend import compile_graph
from stack.frontends.torch.compile.graph_split import Parts
from stack.frontends.torch.compile.tangents import in_dual_level
from stack.frontends.torch.importer.errors import raise_explained
from stack.frontends.torch.program.compiled_graph import Prepared, preparing
from stack.frontends.torch.tracing.dynamo import capturing
from stack.run.rejected_arguments import raise_as_eager

_is_traced = torch.compiler.is_dynamo_compiling
# Dynamo's settings for captures of calls. By default Dynamo skips guards on module hooks, and it
# limits the number of graphs per program.
_SETTINGS = {
    "skip_nnmodule_hook_guards": False,
    "recompile_limit": 1 << 20,
    "accumulated_recompile_limit": 1 << 20,
}
_DYNAMIC = {"assume_static_by_default": False}
_STATIC = {"assume_static_by_default": True, "automatic_dynamic_shapes": False}


class TorchCalls:
    """A torch module or function; its graphs are compiled when a call first needs them.

    `graphs` are the forward graphs, oldest first; `gradients` the backward graphs.
    """

    def __init__(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> None:
        self.fn = fn
        self.options = {k: v for k, v in options.items() if v is not None}
        self.target: str = self.options.pop("label", "")
        self.made: list[Any] = []
        self.reason = ""  # the guard that failed last
        self.changes = 0
        self._here = threading.local()  # `opened`: contexts to close when the call ends
        # not by the parameter `dynamic` of optimize: that sets it around every call, at 10 us each
        self._settings = {**_SETTINGS, **(_DYNAMIC if dynamic else _STATIC)}
        traced = traceable(fn)
        self._call = private.optimized(traced, self._compile, self._failed)
        self._entries = Entries(traced)

    @property
    def graphs(self) -> list[Any]:
        return [g for g in self.made if not g.target.endswith("backward")]

    @property
    def gradients(self) -> list[Any]:
        return [g for g in self.made if g.target.endswith("backward")]

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile for these arguments without running anything and without side effects."""
        if in_dual_level():
            raise StackError("within `dual_level` graphs run op by op in torch: compile before it")
        with preparing():
            try:
                self._called(args, kwargs, captures=True)
            except Prepared:
                return
        raise StackError("the function does no work on tensors: there is nothing to compile")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return self._called(args, kwargs, captures=False)
        entries = self._entries
        code = entries.find(args, kwargs)
        if code is not None:
            if kwargs or entries.bound:
                return code(*entries.bound, *args, **kwargs)
            return code(*args)
        result = self._called(args, kwargs, captures=False)
        self._entries.refresh()
        return result

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any], captures: bool) -> Any:
        outer = getattr(self._here, "opened", None)
        opened: list[ExitStack] = []
        self._here.opened = opened
        try:
            if captures or not (torch.compiler.is_compiling() or self._entries.are_made()):
                self._set_up(opened)
            return self._call(*args, **kwargs)
        except private.dynamo_error() as error:
            more = mismatch([g for g in self.graphs if not isinstance(g, Parts)], args)
            raise_explained(error, self.fn, args, kwargs, more)
        except TypeError as error:  # raised by Python: another number of arguments
            if captures:
                raise_as_eager(self.fn, args, kwargs, error)
            raise
        finally:
            self._here.opened = outer
            for settings in opened:
                settings.close()

    def _set_up(self, opened: list[ExitStack]) -> None:
        """Apply our settings for captures; they last until everything in `opened` is closed."""
        settings = ExitStack()
        opened.append(settings)
        settings.enter_context(held_back())
        settings.enter_context(
            private.compile_lock()
        )  # Dynamo's settings are shared by all threads
        settings.enter_context(capturing(self.fn, self._settings))

    # ---- what Dynamo calls

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        first = len(self.made)
        call = compile_graph(
            gm, example_inputs, self.options, made=self.made, fn=self.fn, target=self.target
        )
        if self.reason:
            for graph in self.made[first:]:
                notes = graph.notes if isinstance(graph, Parts) else graph.captured.notes
                notes["captured again"] = f"no longer holds: {self.reason}"
            self.reason = ""
        return call

    def _failed(self, failure: Any) -> None:
        """Called by Dynamo when a guard fails: prepares a new capture if the call is ours."""
        opened = getattr(self._here, "opened", None)
        if opened is None:  # other code called the function: nobody would close the settings
            return
        if not opened:
            self._set_up(opened)
        text = str(failure.reason).split("\n")[0].partition("  # ")[0]
        self.reason = text.partition(": ")[2].strip() or text
        if self.reason.startswith("tensor "):  # the type or layout of an argument changed: expected
            return
        self.changes += 1
        if self.changes == MANY_CHANGES:
            warnings.warn(
                f"captured {MANY_CHANGES} times because something besides the arguments changed,"
                f" the last time: {self.reason}; pass it as an argument",
                stacklevel=2,
            )


def traceable(fn: Any) -> Any:
    """Returns a function for Dynamo to trace, so that a module's hooks are traced and guarded too.

    Dynamo caches graphs by code object, so each callable gets a code object of its own.
    """
    code = getattr(fn, "__code__", None)
    if isinstance(code, CodeType) and not private.is_skipped(code):
        if isinstance(fn, MethodType):
            return MethodType(traceable(fn.__func__), fn.__self__)
        if isinstance(fn, FunctionType):
            return _with_own_code(fn)

    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return _with_own_code(called)


def _with_own_code(fn: FunctionType) -> FunctionType:
    code, closure = fn.__code__.replace(), fn.__closure__
    twin = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    twin.__kwdefaults__ = fn.__kwdefaults__
    twin.__qualname__ = fn.__qualname__
    twin.__dict__.update(fn.__dict__)
    return twin
