"""autoshard: pick the strategy of least simulated time among those that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from stack.errors import RuleError, UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.mesh.meshes import parse_mesh
from stack.passes.sharding.strategies.products import products
from stack.rewrite import Log, Pass, Pipeline
from stack.rewrite.passes import option_text
from stack.sim import machine, simulate


@dataclass(frozen=True)
class Autoshard(Pass):
    """Beam search over meshes, over how each kind of weight is split, and over ZeRO stages.

    Weights whose names differ only in a number are one kind. So are weights that multiply the same
    value.

    Attributes:
        ranks: number of devices.
        machine: the model of the devices, see `stack.sim`.
        memory: bytes available on each device; 0 takes the memory of the machine.
        beam: number of strategies kept after each decision.
        most: largest tensor-parallel group.
        batch, weights: name patterns of parameters.
    """

    ranks: int = 8
    machine: str = "h100"
    memory: float = 0.0
    beam: int = 2
    most: int = 8
    batch: tuple[str, ...] = ("x", "y")
    weights: tuple[str, ...] = ("*.weight",)

    def run(self, func: Func, log: Log) -> Func:
        if not log.spend(self.name):
            return func
        found = _Search(self, func, log).best()
        log.note(f"taken: {found}")
        return Pipeline(found.strategy.passes(self)).run(func).func


@dataclass(frozen=True)
class Strategy:
    """The decisions of a search: the mesh, the weights split by columns or rows, the ZeRO stage."""

    data: int
    tensor: int
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    stage: int = 0

    def passes(self, options: Autoshard) -> str:
        """Returns the strategy as the text of a pipeline."""
        mesh = f'mesh="dp={self.data}, tp={self.tensor}"'
        found = [f"data_parallel{{{mesh}, batch={option_text(options.batch)}}}"]
        if self.columns or self.rows:
            split = f"columns={option_text(self.columns)}, rows={option_text(self.rows)}"
            found.append(f"tensor_parallel{{{mesh}, {split}}}")
        if self.stage:
            weights = option_text(options.weights)
            found.append(f"zero{{{mesh}, stage={self.stage}, weights={weights}}}")
        return ",".join(found)

    def __str__(self) -> str:
        zero = f", ZeRO-{self.stage}" if self.stage else ""
        split = "".join(
            f", {name} {', '.join(globs)}"
            for name, globs in (("columns", self.columns), ("rows", self.rows))
            if globs
        )
        return f"dp={self.data}, tp={self.tensor}{split}{zero}"


@dataclass(frozen=True)
class Trial:
    """A simulated strategy: its time, its peak memory, and the bytes by which it exceeds memory."""

    strategy: Strategy
    seconds: float
    peak: int
    over: float

    def __str__(self) -> str:
        fits = "" if not self.over else f", {self.over / 2**20:.3g} MiB too many"
        return f"{self.strategy}: {self.seconds * 1e3:.4g} ms, {self.peak / 2**20:.4g} MiB{fits}"


@dataclass
class _Search:
    options: Autoshard
    func: Func
    log: Log
    known: dict[Strategy, Trial | None] = field(default_factory=dict[Strategy, "Trial | None"])

    def best(self) -> Trial:
        options, found = self.options, list[Trial]()
        tensor = 1
        while tensor <= min(options.most, options.ranks) and options.ranks % tensor == 0:
            found += self._on_mesh(Strategy(options.ranks // tensor, tensor))
            tensor *= 2
        for trial in self._kept(found):
            if trial.strategy.data > 1:
                stages = (replace(trial.strategy, stage=stage) for stage in (1, 2, 3))
                found += self._tried(stages)
        if not found:
            raise UsageError(f"no strategy can shard @{self.func.name} over {options.ranks} ranks")
        best = self._kept(found)[0]
        if best.over:
            raise UsageError(
                f"no strategy that was tried keeps @{self.func.name} within the memory of a rank; "
                f"the closest is {best}: more ranks, a larger beam, or recomputation"
            )
        return best

    def _on_mesh(self, start: Strategy) -> list[Trial]:
        """Returns the best strategies on one mesh, deciding for each kind of weight in turn."""
        beam = self._tried([start])
        for globs in self._kinds() if start.tensor > 1 else ():
            more = [
                replace(trial.strategy, **{side: (*getattr(trial.strategy, side), *globs)})
                for trial in beam
                for side in ("columns", "rows")
            ]
            beam = self._kept([*beam, *self._tried(more)])
        return beam

    def _kept(self, found: Sequence[Trial]) -> list[Trial]:
        return sorted(found, key=lambda t: (t.over, t.seconds, t.peak))[: self.options.beam]

    def _kinds(self) -> list[tuple[str, ...]]:
        """Groups patterns of weights that must be split in the same way, in program order."""
        found: dict[Node | str, dict[str, None]] = {}
        place: dict[str, Node | str] = {}
        for p in self.func.params:
            name = str(p.attrs["name"])
            if not any(fnmatchcase(name, glob) for glob in self.options.weights):
                continue
            first = next(iter(products(self.func, p)), None)
            if first is None or p.tensor.rank < 2:
                continue
            glob = re.sub(r"\d+", "*", name)
            node, operand, _ = first
            key = place.setdefault(glob, node.args[1 - operand] if is_contraction(node) else glob)
            found.setdefault(key, {})[glob] = None
        return [tuple(globs) for globs in found.values()]

    def _tried(self, strategies: Sequence[Strategy] | Iterator[Strategy]) -> list[Trial]:
        trials = [self._simulated(strategy) for strategy in strategies]
        return [trial for trial in trials if trial is not None]

    def _simulated(self, strategy: Strategy) -> Trial | None:
        """Simulates a program under a strategy, once: later calls return the cached trial. Returns
        None if the sizes of the values do not allow the strategy."""
        if strategy not in self.known:
            self.known[strategy] = self._trial(strategy)
            if (made := self.known[strategy]) is not None:
                self.log.note(str(made))
        return self.known[strategy]

    def _trial(self, strategy: Strategy) -> Trial | None:
        options = self.options
        passes = f"{strategy.passes(options)},propagate,reshard,spmd"
        try:
            local = Pipeline(passes).run(self.func).func
        except (UsageError, RuleError):
            return None
        device = machine(options.machine)
        mesh = parse_mesh(f"dp={strategy.data}, tp={strategy.tensor}")
        found = simulate(local, mesh, device)
        over = found.peak - (options.memory or device.memory_bytes)
        return Trial(strategy, found.seconds, found.peak, max(over, 0.0))
