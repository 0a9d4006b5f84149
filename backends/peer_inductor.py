"""Drives Inductor and records its code, and the ops in each of its kernels.

If a version lacks one of the hooks that record, programs still compile and run, and the list of
kernels has what the other hooks recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.ir.func import Func
from stack.run.backend import Executable, Kernel

from . import peer_torch as pt
from .peer import Origins, quiet, user_line, zeros

_NOT_RUN = ("MultiOutput", "NoneLayout", "NopKernel")


class Watch:
    """A record of one compilation by Inductor.

    Attributes:
        code: the Python that it wrote, one text per graph.
        steps: `(name, kind, FX nodes)` of every kernel launch and library call, in order.
    """

    def __init__(self) -> None:
        self.code: list[str] = []
        self.steps: list[tuple[str, str, list[Any]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        with private.inductor_record(self.code.append, self._defined, self._called):
            yield

    def _defined(self, name: Any, source: str, nodes: Sequence[Any], *rest: Any) -> None:
        self.steps.append((str(name), "generated", _origins(nodes)))

    def _called(self, result: Any, node: Any) -> None:
        ir = getattr(node, "node", None)
        if type(ir).__name__ in _NOT_RUN:
            return
        name = getattr(ir, "python_kernel_name", None) or type(ir).__name__
        own = getattr(ir, "origin_node", None)
        nodes = [own] if own is not None else _origins([node])
        self.steps.append((str(name).removeprefix("extern_kernels."), "library", nodes))

    @property
    def text(self) -> str:
        return "\n".join(dict.fromkeys(self.code))


def _origins(nodes: Sequence[Any]) -> list[Any]:
    """The FX nodes behind scheduler nodes, in order; without views, unless there are only views."""
    found: dict[Any, None] = {}
    for node in nodes:
        members = node.get_nodes() if hasattr(node, "get_nodes") else ()
        for member in members:
            ir = getattr(member, "node", None)
            if ir is not None and hasattr(ir, "get_origins"):
                found.update(dict.fromkeys(ir.get_origins()))
    return [n for n in found if not _is_view(n)] or list(found)


def _is_view(node: Any) -> bool:
    op = node.target
    return getattr(op, "is_view", False) or op is torch.ops.aten._unsafe_view.default


_SOURCE = re.compile(r"^(\w+) = async_compile\.\w+\((.*?)^'''", re.MULTILINE | re.DOTALL)


def _sources(code: str) -> dict[str, str]:
    """The source text of each generated kernel, by name."""
    return {name: body.partition("'''")[2].strip() for name, body in _SOURCE.findall(code)}


def settings(options: dict[str, Any]) -> dict[str, Any]:
    """Inductor's settings for our options. Raises StackError for an unknown mode."""
    mode = str(options.get("mode", "default"))
    try:
        known = private.inductor_modes(mode)
    except RuntimeError as error:
        raise StackError(f"inductor: {error}") from error
    frozen = {"freezing": True} if options.get("freezing") else {}
    return {**known, **frozen, **options.get("inductor", {})}


@contextmanager
def compiling(options: dict[str, Any], watch: Watch) -> Iterator[None]:
    """Compiles recorded and quietly, without the cache of whole graphs: a hit records nothing."""
    fresh = private.inductor_caches() if options.get("fresh") else nullcontext()
    with (
        fresh,
        private.inductor_settings({"fx_graph_cache": False}),
        private.aot_settings(enable_autograd_cache=False),
        quiet("torch", private.INDUCTOR_LOG, private.DYNAMO_LOG),
        torch.no_grad(),
        watch.watching(),
    ):
        yield


def _note(options: dict[str, Any], what: str) -> str:
    mode = options.get("mode", "default")
    cache = ", an empty cache" if options.get("fresh") else ""
    extra = "".join(f", {k}={v}" for k, v in options.get("inductor", {}).items())
    return (
        f"torch {torch.__version__}, {what}, mode {mode}{extra}{cache},"
        f" {torch.get_num_threads()} threads"
    )


def _executable(
    func: Func, run: Callable[..., Any], watch: Watch, kernels: Any, options: dict[str, Any],
    what: str, arrays: Sequence[np.ndarray], given: Sequence[Any] = (),
) -> Executable:  # fmt: skip
    return pt.executable(
        func,
        run,
        str(options.get("device", "cpu")),
        arrays,
        given,
        find_kernels=kernels,
        artifacts={"inductor": watch.text},
        counts_what="calls in Inductor's wrapper: generated kernels (each may hold several"
        " loop nests) and library calls",
        note=_note(options, what),
    )


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `inductor.compile_inductor`."""
    device = str(options.get("device", "cpu"))
    origins, watch = Origins(func), Watch()
    graph = pt.graph_of(func, origins, device)
    inputs = pt.prepare_for([p.tensor for p in func.params], device)(zeros(func))
    with compiling(options, watch), private.traced_in(pt.fake_mode()):
        run: Any = private.inductor_compile(graph, inputs, settings(options))

    def kernels() -> list[Kernel]:
        sources = _sources(watch.text)
        found: list[Kernel] = []
        for name, kind, nodes in watch.steps:
            group = origins.found(n.meta.get("stack_trace") or "" for n in nodes)
            text = sources.get(name, "")
            found.append(origins.kernel(name, kind, group, text, "cpp" if text else "txt"))
        return found

    what = "graph of the IR's replay, weights are arguments"
    return _executable(func, run, watch, kernels, options, what, zeros(func))


@contextmanager
def _settings(dynamo: dict[str, Any], inductor: dict[str, Any]) -> Iterator[None]:
    with private.dynamo_settings(dynamo), private.inductor_settings(inductor):
        yield


def compile_native(captured: Any, options: dict[str, Any]) -> Executable:
    """See `inductor.native_inductor`."""
    func, watch = captured.func, Watch()
    device = str(options.get("device", "cpu"))
    given = pt.given(captured)
    prepare = pt.prepare_for([p.tensor for p in func.params], device, given)
    # many programs may share one code object; above the limit Dynamo would silently run eager
    limits = {"recompile_limit": 1 << 12, "accumulated_recompile_limit": 1 << 12}
    found = settings(options)

    # a custom backend: with "inductor" by name, Dynamo would reuse code that it compiled before
    def compiler(graph: Any, inputs: Any) -> Any:
        return private.inductor_backend(graph, inputs, found)

    compiled = torch.compile(captured.original, backend=compiler)
    run = pt.rebuilt(captured, compiled)
    # Dynamo also checks if weights are frozen: then they are constants of the graph
    with compiling(options, watch), _settings(limits, found):
        run(*prepare(pt.examples(captured)))
    if not watch.code:
        raise StackError("inductor compiled nothing: torch.compile left the program to eager")

    def kernels() -> list[Kernel]:
        sources = _sources(watch.text)
        return [
            Kernel(
                name,
                kind,
                sources.get(name, ""),
                "cpp" if name in sources else "txt",
                source=tuple(dict.fromkeys(filter(None, map(_line, nodes)))),
                ops=tuple(dict.fromkeys(map(_aten, nodes))),
            )
            for name, kind, nodes in watch.steps
        ]

    weights = ", weights frozen" if options.get("freezing") else ""
    what, arrays = f"torch.compile of the original{weights}", pt.examples(captured)
    return _executable(func, run, watch, kernels, options, what, arrays, given)


def _line(node: Any) -> str:
    return user_line(node.meta.get("stack_trace") or "")


def _aten(node: Any) -> str:
    op = node.meta.get("original_aten") or node.target
    return str(op).removeprefix("aten.").removesuffix(".default").partition(".")[0]
