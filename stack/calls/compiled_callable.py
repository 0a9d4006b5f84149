"""compile() and jit(): compile a user's callable, and capture it again if a guard fails."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from stack.calls.graph import CompiledGraph
from stack.calls.lowered_program import Lowered
from stack.cpython import undisturbed
from stack.errors import StackError, UsageError
from stack.explore.explored_run import ExploredRun, explored
from stack.ir.func import Func
from stack.phases import phase
from stack.run.compile import default_backend, warm
from stack.run.frontend import Calls, Frontend
from stack.run.options import of_graph
from stack.run.pipeline_edits import DEFAULT, Passes, split_weights
from stack.run.rejected_arguments import capture_as_eager
from stack.run.trace import entry_of, find_frontend


class Compiled:
    """A user's callable, compiled.

    It is captured again when a guard of the framework fails. For torch these are Dynamo's guards
    (types, strides and identity of arguments, attributes and training flags of modules, globals,
    modes), for JAX the signature, as under `jax.jit`.

    Gradients of a torch program flow as in eager. The forward pass saves only its inputs, and the
    backward pass recomputes what it needs. For training, `torch.compile(model, backend="stack")`
    chooses which values to save.

    `run` is the record of the newest compilation, `func` its imported function. `gradients` are the
    graphs of backward passes so far.
    """

    def __init__(self, fn: Any, capture_options: dict[str, Any], **options: Any) -> None:
        self.fn = fn
        self.frontend_name: str = capture_options.get("frontend", "auto")
        self.dynamic: bool = capture_options.get("dynamic", False)
        # options of the backend may be in a dict, as in torch.compile
        given = options.pop("options", {})
        self.options = {**options, **given}
        self._calls: Calls | None = None

    @property
    def graphs(self) -> Sequence[CompiledGraph]:
        """The compiled graphs of the user's callable, oldest first; empty before the first call."""
        return self._calls.graphs if self._calls is not None else ()

    @property
    def gradients(self) -> Sequence[CompiledGraph]:
        """The compiled graphs of backward passes, oldest first."""
        return self._calls.gradients if self._calls is not None else ()

    @property
    def graph(self) -> CompiledGraph:
        """The newest compiled graph.

        Raises:
            StackError: there is no single graph, because the program was not called yet, returns
                only views of its arguments, is interpreted, or is compiled in parts (see `graphs`).
        """
        newest: Any = self._newest()  # another object of the frontend if nothing is compiled
        if not isinstance(newest, CompiledGraph):
            held = getattr(newest, "run", newest)
            raise StackError(f"{held!r} is not one compiled graph: nothing to measure")
        return newest

    def _newest(self) -> CompiledGraph:
        if not self.graphs:
            raise StackError("not compiled yet: call it once, or use stack.compile(fn, *args)")
        return self.graphs[-1]

    @property
    def run(self) -> ExploredRun:
        return explored(self._newest().run)

    @property
    def func(self) -> Func:
        return self._newest().func

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        return f"<Compiled {name}: {self.run if self.graphs else 'not called yet'}>"

    def _repr_html_(self) -> str:
        return self.run._repr_html_() if self.graphs else html.escape(repr(self))  # pyright: ignore[reportPrivateUsage]

    def __reduce__(self) -> Any:
        """Copies and unpickled objects are compiled at their first call."""
        capture_options = {"frontend": self.frontend_name, "dynamic": self.dynamic}
        return _anew, (type(self), self.fn, capture_options, self.options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds to an instance like a function in a class."""
        return self if instance is None else MethodType(self, instance)

    @undisturbed
    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for these arguments without running."""
        with phase("capture"):
            self._for(args).prepare(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = self._calls if self._calls is not None else self._for(args)
        return calls(*args, **kwargs)

    def _for(self, args: Sequence[Any]) -> Calls:
        if self._calls is None:
            frontend = find_frontend(self.fn, args, self.frontend_name)
            on_gpu = any(str(getattr(a, "device", "")).startswith("cuda") for a in args)
            backend = self.options.get("backend") or default_backend("cuda" if on_gpu else "cpu")
            warm(backend, self.options)
            passes = self.options.get("passes", DEFAULT)
            if passes != DEFAULT and split_weights(passes)[0]:
                self._calls = WholeCalls(frontend, self.fn, self.options)
            else:
                self._calls = frontend.calls(self.fn, self.dynamic, self.options)
        return self._calls


class Jitted(Compiled):
    """A JAX function that is compiled as by `jax.jit`: the result of `stack.jit`."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Compiles for these arguments without running; returns access to all stages."""
        self.prepare(*args, **kwargs)
        return Lowered(self._newest())


def _anew(
    made: type[Compiled], fn: Any, capture_options: dict[str, Any], options: dict[str, Any]
) -> Compiled:
    return made(fn, capture_options, **options)


class WholeCalls:
    """A user's callable that is compiled with its weights as constants, for passes that use their
    values.

    It is captured once for the shapes of its arguments, without guards, and has no gradients.
    """

    gradients: Sequence[CompiledGraph] = ()

    def __init__(self, frontend: Frontend, fn: Any, options: Mapping[str, Any]) -> None:
        self.frontend, self.fn, self.options = frontend, fn, of_graph(options)
        self.graphs: list[CompiledGraph] = []

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compiles for these arguments without running."""
        self._graph(args, kwargs)

    def _graph(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledGraph:
        if kwargs:
            raise UsageError("a program with constant weights takes positional arguments only")
        found = next((g for g in self.graphs if g.match(args) is not None), None)
        if found is None:
            captured = capture_as_eager(self.frontend, self.fn, args)
            found = CompiledGraph(captured, self.frontend, **self.options)
            self.graphs.append(found)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._graph(args, kwargs)(*args)


def compile(
    fn: Any,
    *args: Any,
    backend: str | None = None,
    passes: Passes = DEFAULT,
    strict: bool = False,
    frontend: str = "auto",
    dynamic: bool = False,
    label: str = "",
    **options: Any,
) -> Compiled:
    """Compile a torch module or function, or a JAX function, for example arguments.

    Args:
        fn: a callable that eager would call as `fn(*args)`; a program of `torch.export`; or a
            function of the IR, which is compiled as it is and then called with NumPy arrays (bf16
            as uint16).
        args: example arguments. Without them, a program that takes arguments is captured and
            compiled at its first call.
        backend: any of `stackc backends`; by default "mlir" for arrays in host memory, "triton" for
            arrays on a GPU.
        passes: a pipeline such as "canonicalize,fuse{max_inputs=8}" or `Pipeline([...])` that
            replaces the backend's own; or changes to that: "default,+mine@fused,-layout".
        strict: raise an error for ops that would fall back to the framework.
        dynamic: make sizes symbolic if the framework can.
        label: the name of the program in the record.
        options: options of the backend, see `stackc backends NAME`. Our backends take `target`, the
            machine to lower for: a name of `stackc targets`, or a file (default: this machine); and
            `schedule`, the schedules of groups by names of values: `{"y": "m=128 n=64"}`.
            `freeze=True` ("mlir"): if no gradients are needed, values that depend only on weights,
            packed matmul panels included, are computed once and cached until a weight's memory or
            version counter changes. Writes through `.data` or NumPy are not detected.

    Returns:
        A callable like `fn`. For a torch module it is a module with the parameters, the state and
            the modes of `fn`; a copy of it (`copy.deepcopy`) is compiled at its first call.

    Raises:
        UsageError: for an unknown option, with the closest name.
        UnsupportedOp: with strict, lists every op without a native lowering.
        BackendMissing: names the extra to install or the device needed.
    """
    entry = entry_of(fn, frontend)
    made = entry.facade or Compiled
    compiled = made(
        entry.fn,
        {"frontend": frontend, "dynamic": dynamic},
        backend=backend,
        passes=passes,
        strict=strict,
        label=label,
        **options,
    )
    args, takes_some = args or entry.args or (), False
    called = entry.signature or entry.fn
    try:
        if not args and callable(called):
            inspect.signature(called).bind()
    except ValueError:  # it has no signature
        pass
    except TypeError:  # it is captured at the first call, which has the arguments
        takes_some = True
    if not takes_some:
        compiled.prepare(*args)
    return compiled


def jit(fn: Callable[..., Any], **options: Any) -> Jitted:
    """`jax.jit` with this compiler: traces at the first call and for each new signature.

    Options are those of `stack.compile`, and `static_argnums`, `static_argnames`, `donate_argnums`,
    `donate_argnames`, `keep_unused` and `inline` of `jax.jit`. Methods may be decorated.
    `stack.jit(f).lower(x)` gives access to all stages. If a function is traced again,
    `run.notes["captured again"]` says which argument or setting changed.
    """
    dynamic = options.pop("dynamic", False)
    return Jitted(fn, {"frontend": "jax", "dynamic": dynamic}, **options)
