"""schedule: write on each group, as data, how it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from stack.errors import UsageError
from stack.imports import function_of
from stack.ir.equivalence import equivalence_key
from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_contraction, is_generated, is_stream
from stack.passes.gpu_products.group_split import UNFUSED
from stack.passes.policies.lowerings import policy_of, taken_steps
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of, is_bare
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass, changed_bodies
from stack.schedule import (
    PART,
    Policy,
    Schedule,
    ScheduleChoice,
    given_for,
    is_list,
    is_pattern,
    of_part,
    with_schedules,
)
from stack.target import Gpu, Target, as_cpu, as_gpu

# for each kind of kernels: the policy of a group for a target
LOOPS: dict[str, Callable[[Node, Target | None], Policy | None]] = {
    "blocks": lambda group, target: policy_of(group, as_gpu(target)),
    "cpu": lambda group, target: policy_of(group, as_cpu(target)),
    "warps": lambda group, target: policy_of(group, as_gpu(target), has_threads=True),
}
TOLD = 2  # schedules whose time is logged, at least


@dataclass(frozen=True)
class WriteSchedules(Pass):
    """Write `schedule` on groups: the one that a person gives, else the best by the cost model.

    Kernels follow it. Measuring others is up to the caller, who has the device. For a matmul with
    nothing fused to it, "library" is among the schedules; it is first if the model is sure that a
    library is faster. For matmuls of one left operand in one group, "unfused" is among them: one
    kernel for each.

    Attributes:
        loops: the kind of kernels, one of `LOOPS`; or `module:function`, which returns the policy
            of a group for a target.
        most: number of schedules to write, best first.
    """

    name: ClassVar[str] = "schedule"
    takes_schedules: ClassVar[bool] = True
    loops: str = "blocks"
    most: int = 1

    def idle(self, func: Func) -> str:
        has_choice = self.loops != "cpu" or "dot" in func.body.ops
        return "" if has_choice else "no dot in the program: there is one way to compute the rest"

    def run(self, func: Func, log: Log) -> Func:
        if self.loops not in LOOPS and ":" not in self.loops:
            raise UsageError(f"no loops {self.loops!r} to schedule; there are: {', '.join(LOOPS)}")
        writer = _Writer(self, log, {block.names.get(node, "") for block, node in walk(func.body)})
        made = Func(func.name, writer.block(func.body), func.level)
        for name in log.schedules.keys() - writer.taken:
            if name in writer.refused:
                raise UsageError(f"%{name} has no kernel to schedule: {writer.refused[name]}")
            if not is_pattern(name):
                known = ", ".join(writer.names) or "none"
                raise UsageError(f"no group to schedule is called %{name}; there are: {known}")
        return made

    def best(self, node: Node, target: Target | None) -> list[str]:
        """Returns up to `most` schedules of one group as texts, best first; empty if the group has
        no scheduling policy or cannot be tiled."""
        try:
            policy = _policy(node, self.loops, target)
        except CannotTile:
            return []
        found = policy.considered if policy is not None else []
        return [str(schedule) for schedule, _ in found[: self.most]]


class _Writer:
    def __init__(self, options: WriteSchedules, log: Log, values: set[str]) -> None:
        self.loops, self.most, self.log = options.loops, options.most, log
        self.refused: dict[str, str] = {}  # groups without such a kernel, and the reason
        self.names: dict[str, None] = {}  # groups that take a schedule or a list of steps
        self.taken: set[str] = set()  # given entries that were used
        self.values = values  # names in the function
        self.policies: dict[tuple[Any, ...], Policy | None] = {}  # one for all equal groups

    def block(self, block: Block) -> Block:
        """Returns a block with schedules on the groups in it and in its loops."""
        changed = changed_bodies(block, self.block)
        for node in block.nodes:
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            text = self._written(node, name, lines) if self.log.schedules else ""
            if text:
                if self.log.spend("schedule", lines):
                    changed[node] = with_schedules(group_of(node, lines), [text])
                continue
            key = equivalence_key(node)
            try:
                if key not in self.policies:
                    self.policies[key] = _policy(node, self.loops, self.log.target)
            except CannotTile as why:
                self.refused[name] = str(why)
                self.log.choices.append(ScheduleChoice(name, "", f"no kernel of its own: {why}"))
                continue
            policy = self.policies[key]
            if policy is None:
                what = node.attrs.get("name", node.op)
                why = f"there is one way to compute {what}, other than by a list of steps"
                self.refused.setdefault(name, why)
                continue
            found: list[str] = []
            if self.log.schedules:
                found = self._given(node, policy, lines, name, str(node.attrs.get("name", "")))
            self.log.choices.append(ScheduleChoice.of(policy, name, found[0] if found else ""))
            found = found or self._proposed(policy, name, node, lines)
            if found and self.log.spend("schedule", lines):
                changed[node] = with_schedules(group_of(node, lines), found)
        return replace(block, changed)

    def _given(self, node: Node, policy: Policy, lines: tuple[str, ...], *names: str) -> list[str]:
        """Returns the schedule that a user wrote for a group of these names, in a list; empty if
        there is none. Raises UsageError if the group's policy cannot follow it."""
        is_part = names[0].endswith(PART)
        entry, text = given_for(self.log.schedules, names[0].removesuffix(PART), *names)
        if not text or is_list(text) or names[0] + PART in self.values:
            return []  # a list for others; or its parts have the schedule, this is their sum
        given = Schedule.parse(text)
        if is_part:
            given = of_part(given)
        if is_pattern(entry) and any(policy.domain.axis(s.axis) is None for s in given.splits):
            return []  # the schedule is meant for other groups
        self.taken.add(entry)
        try:
            found = str(policy.follow(given))
        except UsageError as error:
            raise UsageError(f"%{names[0]}: {error}") from error
        self.log.note(f"{names[0]} of {policy.domain}: {found}, as {text!r} asks", lines)
        return [found]

    def _written(self, node: Node, name: str, lines: tuple[str, ...]) -> str:
        """Returns the list of steps that a person wrote for a group; "" if there is none, or it is
        for groups with other axes.

        Raises:
            UsageError: it cannot be read, or a step is not legal.
        """
        if not (is_generated(node) or is_stream(node) or is_bare(node)):
            return ""
        self.names[f"%{name}"] = None
        own = str(node.attrs.get("name", ""))
        entry, text = given_for(self.log.schedules, name.removesuffix(PART), name, own)
        if not is_list(text) or name + PART in self.values:
            return ""
        self.taken.add(entry)
        if self.loops not in LOOPS:
            raise UsageError(f"%{name}: {self.loops} takes no lists of steps")
        target = (as_cpu if self.loops == "cpu" else as_gpu)(self.log.target)
        try:
            steps = taken_steps(group_of(node), text, target, is_pattern(entry))
        except UsageError as error:
            raise UsageError(f"%{name}: {error}") from error
        made = "; ".join(map(str, steps))
        if made:
            self.log.note(f"{name}: {made}, as given", lines)
        return made

    def _proposed(self, policy: Policy, name: str, node: Node, lines: tuple[str, ...]) -> list[str]:
        found = policy.considered
        expected = [(s, p) for s, p in found if p is not None]
        if expected:
            most = len(expected) if self.log.verbose else max(self.most, TOLD)
            told = [
                f"{schedule}: {prediction.told()}"
                for i, (schedule, prediction) in enumerate(expected)
                if i < most or schedule.instead == UNFUSED
            ]
            (dot, *_) = (n for n in group_of(node).blocks[0].nodes if is_contraction(n))
            reach = _reach(as_gpu(self.log.target))
            text = f"{name} {dot.attrs['rule']}: the model expects {'; '.join(told)} ({reach})"
            self.log.note(text, lines)
        elif self.log.verbose:
            own, *others = (str(schedule) for schedule, _ in found)
            also = f"; legal too: {'; '.join(others)}" if others else ""
            self.log.note(f"{name} of {policy.domain}: {own}{also}", lines)
        return [str(schedule) for schedule, _ in found[: self.most]]


def _policy(node: Node, loops: str, target: Target | None) -> Policy | None:
    """Returns the policy of a group, or of a matmul that fusion left bare; None if there is none.

    Raises CannotTile.
    """
    if not (is_generated(node) or is_stream(node) or is_contraction(node)):
        return None
    policy = LOOPS[loops] if loops in LOOPS else function_of(loops)
    return policy(group_of(node), target)


def _reach(gpu: Gpu) -> str:
    """Returns the log line with the GPU's numbers that the cost model uses, such as its compute
    rate."""
    return (
        f"{gpu.processors} processors, {gpu.bf16_rate / 1e12:.0f} Tflop/s,"
        f" {gpu.memory_rate / 1e12:.3g} TB/s, {gpu.shared_bytes >> 10} KiB shared"
    )
