"""A compiled ATen graph, called with the arguments that AOTAutograd passes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

import stack.plugins as plugins
from stack.calls.graph import CompiledGraph
from stack.frameworks import torch_private as private
from stack.frameworks.torch_ranges import torch_ranges
from stack.frontends.torch.capture.calls import kept_promises
from stack.frontends.torch.importer.border import Border, Order, Replay
from stack.frontends.torch.importer.graph import Imported
from stack.frontends.torch.importer.strided_arguments import Apart
from stack.frontends.torch.program.address_calls import dense_caller
from stack.frontends.torch.program.fast_path import Shortcut
from stack.frontends.torch.program.repeated_checks import Checks
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, is_dense
from stack.frontends.torch.tensors.size_symbols import lone_symbol
from stack.ir.func import Func
from stack.ir.node import Block, Node, by_distance
from stack.ir.types import BF16, BOOL
from stack.ranges import register
from stack.run.backend import Direct
from stack.run.frontend import RECORD, Captured, Frontend
from stack.run.met_sizes import MetSizes, SeldomSizes, Sizes
from stack.run.record import recorded

register("torch", torch_ranges)

# True while calls compile their graphs and end before running them.
_PREPARING: ContextVar[bool] = ContextVar("preparing", default=False)


class Prepared(Exception):
    """Ends a call after its graph is compiled and before anything runs."""


@contextmanager
def preparing() -> Iterator[None]:
    """Context in which a call of a compiled graph raises `Prepared` instead of running it."""
    token = _PREPARING.set(True)
    try:
        yield
    finally:
        _PREPARING.reset(token)


def is_preparing() -> bool:
    """True if calls are to end by `Prepared`."""
    return _PREPARING.get()


# Options that we read; the others are passed to the backend.
_OWN = ("backend", "passes", "strict")
CUT_FOR = "cut_for"  # the backend that training graphs are partitioned for, if another runs them


def boxed(made: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Marks a function as taking its arguments in one list, AOTAutograd's boxed convention."""

    def call(args: list[Any]) -> list[Any]:
        return made(args)

    return private.boxed(call)


class Graph:
    """One compiled ATen graph, called as AOTAutograd does: with a list, which it may empty."""

    def __init__(
        self, graph: GraphModule, border: Border, imported: Imported, captured: Captured,
        options: dict[str, Any], target: str, made: Any,
    ) -> None:  # fmt: skip
        self.border, self.imported, self.captured = border, imported, captured
        self.options, self.target, self.made = options, target, made
        self.graph = graph
        is_alone = options.get("strict") or options.get("backend") in ("interpreter", RECORD)
        self.met = MetSizes(target or imported.func.name, "" if is_alone else "torch")
        self.by_size: dict[tuple[tuple[str, int], ...], Any] = {}
        holders = graph.graph.find_nodes(op="placeholder")
        self.loose = _loose_sizes(imported)
        # true if parameters are exactly the arguments of a call, in order
        self.is_plain = imported.inputs == [*range(len(holders))] and not any(imported.orders)
        views = [i for i in imported.inputs if isinstance(i, FxNode)]
        self.views = Replay(views, holders) if views else None
        func = imported.func
        self.places = {p: i for i, p in enumerate(func.params)}
        self.passed = {o: self.places[o] for o in imported.outputs if o in self.places}
        self.spent = border.unread()
        checks = [(self.places[c.param], c) for c in imported.checks if c.param in self.places]
        self.check_indices = Checks(checks, func.params)
        # values to compute: each once, without those that are inputs passed through
        promises = func.results[len(imported.outputs) :]
        fresh = dict.fromkeys(o for o in imported.outputs if o not in self.places)
        results = [*by_distance(fresh), *promises]
        self.numbers = {r: i for i, r in enumerate(results)}
        self.direct = self._direct()
        self.inputs = len(holders)
        self.shortcut = self._shortcut()
        # fast call for arguments like those of the last call: by address
        self.short: Direct | None = None
        self.stepwise: Direct | None = None  # the same while a profiler records its steps
        body = Block(func.params, results, func.body.names, func.body.locs)
        self.func = Func(func.name, body, func.level)
        if not self.func.results:  # all results are views, which torch makes
            self.made.append(Recorded(replace(captured, func=self.func), target, "eager"))
        elif not self.loose:
            self._compiled({})

    def near(self, args: Sequence[Any]) -> list[Any] | None:
        """Returns the results of the fast path (a call by addresses); None if it does not apply.

        It applies to arguments with the same layouts as those of an earlier call.
        """
        short = self.stepwise if private.is_profiled() else self.short
        return None if short is None or _PREPARING.get() else short(args)

    def instead_of(self, around: Callable[..., Any], count: int) -> Callable[..., Any]:
        """Returns a callable that tries the fast path (a call by addresses) before `around`.

        `around` is the call with AOTAutograd's wrappers; it returns the first `count` results.
        """
        is_whole, is_profiled = count == len(self.border.outputs), private.is_profiled

        def call(*args: Any) -> Any:
            short = self.stepwise if is_profiled() else self.short  # inlined `near`: saves a call
            found = None if short is None or _PREPARING.get() else short(args)
            if found is None:
                return around(*args)
            return found if is_whole else found[:count]

        return call

    def __call__(self, args: list[Any]) -> list[Any]:
        found = self.near(args)
        return self._called(args) if found is None else found

    def _called(self, args: list[Any]) -> list[Any]:
        """Runs the graph with all checks, and prepares the fast path for arguments like these.

        Raises `Prepared` instead if the call is only to compile the graph.
        """
        arrays = self._arrays(args)
        sizes = {n: args[i] for n, i in self.loose.items() if isinstance(args[i], int)}
        if _PREPARING.get():
            if self.func.results:
                self._compiled(sizes).prepare(arrays)
            raise Prepared
        self.check_indices(arrays)
        passed = {output: arrays[place] for output, place in self.passed.items()}
        short, stepwise = (self._learned(args, arrays, is_native) for is_native in (True, False))
        found = self._found(args, arrays, sizes) if self.func.results else ()
        if found is None:
            return self._in_torch(args)
        self.short, self.stepwise = short, stepwise
        if self.direct is not None:
            return [found[number] for number in self.direct]
        return self.border.results(args, self._fresh(found, passed))

    @cached_property
    def _eager(self) -> GraphModule:
        """The graph as a module with code, which graphs that we record do not have."""
        return GraphModule(self.graph, self.graph.graph)

    def _in_torch(self, args: Sequence[Any]) -> list[Any]:
        """Runs a call op by op."""
        with torch.no_grad(), private.without_autocast():
            return [*self._eager(*args)]

    def _found(self, args: list[Any], arrays: list[Any], sizes: dict[str, int]) -> Any:
        """Runs the program, and removes arguments that are not read later from their list. Returns
        None if torch is to run a call of these sizes.
        """
        try:
            program = self._compiled(sizes, is_call=True)
            if self.met.is_full:
                program.meet(arrays)
        except SeldomSizes:
            return None
        for place in self.spent:
            args[place] = None  # frees memory that nobody else references
        return program.call_flat(arrays)

    def _direct(self) -> list[int] | None:
        """Returns for each result of the graph its number among the program's results.

        None if a result is an input, a view or a copy, or has its axes in another order in memory.
        """
        own, orders = self._own(), self.border.orders
        if own is None or any(o is None or o != tuple(range(len(o))) for o in orders):
            return None
        return [self.numbers[self.imported.outputs[i]] for i in own]

    def _own(self) -> list[int] | None:
        """Returns for each result its number among the fresh values, which the program computes.

        None if some result is an input or shares memory, or if conditions are checked after a run.
        """
        is_own = self._are_distinct() and not self.imported.promises
        return self.border.returned() if is_own else None

    def _are_distinct(self) -> bool:
        """True if the program computes each fresh value, in memory of its own."""
        outputs = self.imported.outputs
        is_distinct = len(set(outputs)) == len(outputs)
        return is_distinct and not any(o in self.places for o in outputs)

    def _shortcut(self) -> Shortcut | None:
        """Returns how to call the graph by address; None if it needs more than its arguments."""
        inputs, results = self.imported.inputs, self.border.places()
        places = tuple(i for i in inputs if isinstance(i, int))
        is_open = self.imported.sizes or self.imported.func.symbols
        if not self._are_distinct() or is_open or len(places) < len(inputs) or results is None:
            return None
        orders = self.border.orders
        likes = [node.meta["val"] for node in self.border.fresh]
        laid = [range(x.dim()) if o is None else o for x, o in zip(likes, orders, strict=True)]
        apart = {i: tuple(likes[i].stride()) for i, o in enumerate(orders) if o is None}
        promises = tuple(self.imported.promises)
        numbers = [*map(self.numbers.__getitem__, self.imported.func.results)]
        if not self.inputs or len(set(numbers)) < len(numbers):  # a result is also a condition
            return None
        fresh = tuple(zip(numbers, [*map(tuple, laid), *(() for _ in promises)], strict=True))
        return Shortcut(self.inputs, places, fresh, tuple(results), apart, promises)

    def _learned(
        self, args: Sequence[Any], arrays: Sequence[Any], is_native: bool
    ) -> Direct | None:
        """Returns a call by addresses for arguments with the layouts of these; None if impossible.

        `arrays`: the arguments as the program gets them. `is_native`: in one native function.
        """
        if self.shortcut is None or not all(isinstance(a, torch.Tensor) for a in args):
            return None
        if not self.func.results:
            found = self.shortcut.of_views(args)
        else:
            found = self._by_address(self.shortcut, args, arrays, is_native)
        return None if found is None else self.check_indices.before(found, self.shortcut.places)

    def _by_address(
        self, shortcut: Shortcut, args: Sequence[Any], arrays: Sequence[Any], is_native: bool
    ) -> Direct | None:
        compiled = self.by_size.get(())
        if not isinstance(compiled, CompiledGraph):
            return None
        program, kept = compiled.by_address(())
        if program is None:
            call = compiled.call_dense(())
            if call is None:
                self.shortcut = None  # nor for other arguments: later calls do not ask
                return None
            return shortcut.dense(
                call, args, arrays, compiled.captured.device, self.func.results, self._array
            )
        if not is_native:
            program = replace(program, entered=lambda _: None)
        return shortcut.near(program, args, arrays, self.func.results, kept)

    def _arrays(self, args: Sequence[Any]) -> list[Any]:
        """Returns a tensor for each parameter of the program, with its axes in memory order."""
        if self.is_plain:
            return [*args]
        views = iter(self.views(args) if self.views is not None else ())
        arrays: list[Any] = []
        for source, order in zip(self.imported.inputs, self.imported.orders, strict=True):
            if isinstance(source, int):
                arrays.append(_as_it_lies(args[source], order))
            else:
                arrays.append(source if isinstance(source, torch.Tensor) else next(views))
        return arrays

    def _array(self, args: Sequence[Any], number: int) -> torch.Tensor:
        """Returns the tensor for a parameter that is an argument, as `_arrays` does."""
        place: Any = self.imported.inputs[number]
        return _as_it_lies(args[place], self.imported.orders[number])

    def _fresh(self, found: Sequence[Any], passed: Mapping[Node, Any]) -> list[torch.Tensor]:
        """Returns the graph's fresh values from the program's results, each in memory of its own.

        `passed`: values that are parameters of the program, with their arrays. Raises the error of
        a condition that is checked after a run.
        """
        found = kept_promises(found, self.imported.promises)
        taken: set[Node] = set()
        fresh: list[torch.Tensor] = []
        for output in self.imported.outputs:
            tensor = passed[output] if output in passed else found[self.numbers[output]]
            if output in passed or output in taken:
                tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
            taken.add(output)
            fresh.append(tensor)
        return fresh

    def _compiled(self, sizes: dict[str, int], is_call: bool = False) -> Any:
        """Returns the program for the sizes that only arguments tell. Raises SeldomSizes if torch
        is to run a call of these.
        """
        key = tuple(sorted(sizes.items())) if sizes else ()
        if key not in self.by_size:
            func = self.func.bind(sizes) if sizes else self.func
            if is_call and not func.symbols:
                self.met.ask(key)
            self.by_size[key] = self._compile(func)
        return self.by_size[key]

    def _compile(self, func: Func) -> Any:
        captured = replace(self.captured, func=func)
        own = {k: self.options[k] for k in _OWN if k in self.options}
        if own.get("backend") == "interpreter":
            graph: Any = Interpreted(captured, self.target, "interpreter")
        elif own.get("backend") == RECORD:
            graph = Recorded(captured, self.target, "interpreter")
        else:
            rest = {k: v for k, v in self.options.items() if k not in (*_OWN, CUT_FOR)}
            frontend: Frontend = plugins.load("stack.frontends", "torch")
            # torch may be tracing this with fake tensors; a backend creates real ones
            with private.without_modes():
                graph = _OnTensors(
                    captured, frontend, options=rest, label=self.target, others=self.made,
                    met=self.met, **own
                )  # fmt: skip
        self.made.append(graph)
        return graph


class _OnTensors(CompiledGraph):
    """A program of torch tensors: fast calls of those that kernels take as tensors, on a GPU."""

    def _direct(self, sizes: Sizes, arrays: Sequence[torch.Tensor]) -> Direct | None:
        found, call = super()._direct(sizes, arrays), self.call_dense(sizes)
        if found is not None or call is None:
            return found
        if not all(is_dense(a, self.captured.device) for a in arrays):
            return None
        views = [(number, None) for number in range(len(self.returned))]
        return dense_caller(call, arrays, range(len(arrays)), operator.getitem, views)


def _as_it_lies(tensor: torch.Tensor, order: Order | Apart | None) -> torch.Tensor:
    if isinstance(order, Apart):
        return order.flat(tensor)
    return tensor.permute(order) if order else tensor


def _loose_sizes(imported: Imported) -> dict[str, int]:
    """Maps each symbol that no parameter's shape contains alone to its size argument's position."""
    told = {lone_symbol(d) for p in imported.func.params for d in p.shape}
    found: dict[str, int] = {}
    for place, size in imported.sizes.items():
        name = lone_symbol(size)
        if name is not None and name not in told:
            found[name] = place
    return found


class Recorded:
    """A graph only imported, for its record. Calls return zeros; bools are true, so checks pass."""

    def __init__(self, captured: Captured, target: str, backend: str) -> None:
        self.captured, self.func, self.target = captured, captured.func, target
        self.device = captured.device
        self.run = recorded(captured, "torch", target, backend)
        self.runs = {(): self.run}

    def prepare(self, arrays: Sequence[torch.Tensor]) -> None:
        """Does nothing: there is nothing to compile."""

    def call_flat(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._placeholder(r) for r in self.func.results]

    def _placeholder(self, node: Node) -> torch.Tensor:
        shape = [int(str(size)) for size in node.shape]
        dtype = TORCH_DTYPE[node.dtype]
        one = torch.full((), node.dtype is BOOL, dtype=dtype, device=self.device)
        return one.expand(shape)  # values saved for backward may exceed memory


class Interpreted(Recorded):
    """A graph run by the reference interpreter: `options={"backend": "interpreter"}`."""

    def call_flat(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ready = [self._array(a, p) for a, p in zip(arrays, self.func.params, strict=True)]
        results = self.func.interpret(*ready)
        if not isinstance(results, tuple):
            results = (results,)
        return [self._tensor(r, n) for r, n in zip(results, self.func.results, strict=True)]

    def _array(self, tensor: torch.Tensor, p: Node) -> Any:
        held = tensor.detach().float() if p.dtype is BF16 else tensor.detach()
        return held.resolve_conj().numpy()

    def _tensor(self, array: Any, node: Node) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(TORCH_DTYPE[node.dtype])
