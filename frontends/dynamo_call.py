"""What `stack.compile` gives for a torch program: its calls go through Dynamo and AOTAutograd.

Dynamo guards what a trace took for granted and replays side effects; AOTAutograd's wrappers keep
aliases, mutation and gradients. Ours is what they call: the compiled graphs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import exc

from stack.collector import held_back
from stack.errors import StackError
from stack.frontends.dynamo_backend import compile_graph
from stack.frontends.dynamo_entries import Entries
from stack.frontends.dynamo_graph import Prepared, preparing
from stack.frontends.dynamo_scopes import nameless
from stack.frontends.dynamo_spared import spared
from stack.frontends.dynamo_split import Parts
from stack.frontends.dynamo_tracing import one_at_a_time, quiet
from stack.frontends.torch_errors import raise_explained
from stack.frontends.torch_recurrent import in_scans
from stack.frontends.torch_tangents import in_dual_level
from stack.run.compiled import MANY_CHANGES, mismatch
from stack.run.refused import raise_as_eager

# How Dynamo captures for us: hooks of modules are guarded and recurrent modules traced, which it
# leaves out by default, and a program has as many graphs as its calls need.
_is_traced = torch.compiler.is_dynamo_compiling
_SETTINGS = {
    "skip_nnmodule_hook_guards": False,
    "allow_rnn": True,
    "recompile_limit": 1 << 20,
    "accumulated_recompile_limit": 1 << 20,
}
_DYNAMIC = {"assume_static_by_default": False}
_STATIC = {"assume_static_by_default": True, "automatic_dynamic_shapes": False}


class TorchCalls:
    """A torch module or function whose graphs are compiled as calls need them.

    `graphs` are those of results, oldest first; `gradients` those of the backward pass.
    """

    def __init__(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> None:
        self.fn = fn
        self.options = {k: v for k, v in options.items() if v is not None}
        self.target: str = self.options.pop("label", "")
        self.made: list[Any] = []
        self.reason = ""  # the guard that failed last
        self.changes = 0
        self._here = threading.local()  # `opened`: what ends with a call
        # not as optimize's `dynamic`, which sets it around every call, for 10 us of each
        self._settings = {**_SETTINGS, **(_DYNAMIC if dynamic else _STATIC)}
        traced = traceable(fn)
        self._call = torch._dynamo.optimize(
            self._compile, nopython=True, guard_fail_fn=self._failed
        )(traced)
        self._entries = Entries(traced)

    @property
    def graphs(self) -> list[Any]:
        return [g for g in self.made if not g.target.endswith("backward")]

    @property
    def gradients(self) -> list[Any]:
        return [g for g in self.made if g.target.endswith("backward")]

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile for these arguments; nothing runs, and no side effect happens."""
        if in_dual_level():
            raise StackError("within `dual_level` graphs run op by op in torch: compile before it")
        with preparing():
            try:
                self._called(args, kwargs, captures=True)
            except Prepared:
                return
        raise StackError(f"{self.fn!r} does no work on tensors: there is nothing to compile")

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
        except exc.TorchDynamoException as error:
            more = mismatch([g for g in self.graphs if not isinstance(g, Parts)], args)
            raise_explained(error, self.fn, args, kwargs, more)
        except TypeError as error:  # of Python's: another number of arguments
            if captures:
                raise_as_eager(self.fn, args, kwargs, error)
            raise
        finally:
            self._here.opened = outer
            for settings in opened:
                settings.close()

    def _set_up(self, opened: list[ExitStack]) -> None:
        """Our settings, for captures until what is opened is closed."""
        settings = ExitStack()
        opened.append(settings)
        settings.enter_context(held_back())
        settings.enter_context(one_at_a_time())  # Dynamo's settings are shared by all threads
        settings.enter_context(torch._dynamo.config.patch(self._settings))
        settings.enter_context(nameless(self.fn))
        settings.enter_context(spared())
        settings.enter_context(in_scans())
        settings.enter_context(quiet("torch._subclasses.fake_tensor"))

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
        """A guard did not hold: the program is captured again, where it is we who are called."""
        opened = getattr(self._here, "opened", None)
        if opened is None:  # somebody else runs the same code: no end of ours would close anything
            return
        if not opened:
            self._set_up(opened)
        text = str(failure.reason).split("\n")[0].partition("  # ")[0]
        self.reason = text.partition(": ")[2].strip() or text
        if self.reason.startswith("tensor "):  # an argument's type or layout: that is expected
            return
        self.changes += 1
        if self.changes == MANY_CHANGES:
            warnings.warn(
                f"captured {MANY_CHANGES} times because something besides the arguments changed,"
                f" the last time: {self.reason}; pass it as an argument",
                stacklevel=2,
            )


def traceable(fn: Any) -> Any:
    """A function for Dynamo to read: a module's hooks are read with it, and so guarded.

    Dynamo keeps its graphs with the code: each callable gets code of its own.
    """
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
