# %% [markdown]
# # 3. Fusion: what may share a kernel, and what should
#
# Memory is slow. A kernel that reads an array, adds one and writes it back spends nearly all of
# its time on the road. **Fusion** computes several ops in one kernel, so that what is between
# them never leaves the registers. Two questions decide: is it *legal* (can one loop compute
# both?), and is it *profitable* (does it save more than it costs?).

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch

import stack
from stack.demos.course.show import Picture, race, show
from stack.explore.table import table
from stack.ir import Func
from stack.rewrite import Ok, Pass, Pipeline, Why
from stack.rewrite.fusion import FusionRule, Grouping, Limits
from stack.rewrite.outline import outline


def norm(x, g):
    scaled = torch.tanh(x) * g
    return scaled / torch.sqrt((scaled * scaled).mean(-1, keepdim=True) + 1e-6)


args = (torch.randn(2048, 1024), torch.randn(1024))
run = stack.compile(norm, *args).run
show(Picture(run.func("canonical")))

# %% [markdown]
# Legality is geometry. Each op says with one rule which elements of its operands an element of
# its result needs. Composing the rules answers: where does the consumer read the producer? An
# elementwise consumer reads it at its own place: one loop does. A reduction reads a whole row:
# then the loop must hold a row, or the producer is computed again for every reader.
#
# The engine walks pairs of producer and consumer, has axes, cycles and limits checked, and asks a
# list of rules. A rule answers `Ok` or `Why(reason)`. This one lets nothing but elementwise
# chains together:


# %%
class Chains(FusionRule):
    """Elementwise ops with elementwise ops."""

    def legal(self, producer, consumer, maps):
        if producer.reduces or consumer.reduces:
            return Why("a reduction is no elementwise op")
        return Ok


class IntoReductions(FusionRule):
    """A reduction takes in what feeds it; what reads it begins a new kernel."""

    def legal(self, producer, consumer, maps):
        return Why("a reduction ends its kernel") if producer.reduces else Ok


@dataclass(frozen=True)
class FuseBy(Pass):
    """Groups by one rule."""

    name: ClassVar[str] = "fuse-by"
    rule: str = "chains"
    max_inputs: int = 8

    def run(self, func, log):
        rules = {"chains": Chains, "into": IntoReductions}
        limits = Limits(self.max_inputs)
        groups = Grouping(func.body, [rules[self.rule]()], log, limits, frozenset({"reduce"}))
        groups.run(0)
        groups.report()
        return Func(func.name, outline(groups), func.level)


before = run.func("streamed")
for rule in ("chains", "into"):
    result = Pipeline([FuseBy(rule)]).run(before, check=True, verbose=True)
    print(f"---- {rule}: {sum(n.op == 'fusion' for n in result.func.nodes)} groups")
    for told in dict.fromkeys(
        (r.producer, r.consumer, r.reason) for r in result.records[0].refused
    ):
        print("   kept {} apart from {}: {}".format(*told))

# %% [markdown]
# `check=True` interpreted the function before and after. That the groups are *right* is settled;
# now what are they *worth*? `run.resume` goes on from any stage, here with our own groups in
# place of those of the built-in pass, down to machine code.


# %%
def built(func):
    return run.resume("fused", func)


versions = {
    "one op, one kernel": built(before),
    "chains": built(Pipeline([FuseBy("chains")]).run(before).func),
    "into reductions": built(Pipeline([FuseBy("into")]).run(before).func),
    "built in": built(run.func("fused")),
}
arrays = [a.numpy() for a in args]
times = race({name: lambda v=v: v(*arrays) for name, v in versions.items()})
rows = [
    [name, len(v.run.kernels), f"{sum(k.bytes for k in v.run.kernels) / 1e6:.1f} MB"]
    + [f"{1e3 * times[name].median:.2f} ms", f"{1e3 * times[name].spread:.2f} ms"]
    for name, v in versions.items()
]
print(table(["fusion", "kernels", "bytes", "time", "spread"], rows))

# %% [markdown]
# Fewer bytes, less time: the count in the third column predicts the order in the fourth. Where
# two times are closer than their spreads, they say nothing. On the command line the same race
# against other compilers is `stackc bench FILE:NAME --with inductor,xla`.
#
# When is fusion *not* worth it? When the producer is expensive and would be computed again for
# each reader; when a tile of the consumer cannot hold what the producer needs; when registers run
# out. The built-in pass says so where it declines:

# %%
two = stack.compile(
    lambda x, w: torch.softmax(x @ w, -1), torch.randn(64, 64), torch.randn(64, 4096)
)
print(two.run.explain("softmax"))

# %% [markdown]
# ## Exercise
#
# Write the rule of a fusion pass: everything may be fused, except that one kernel holds at most
# one reduction. Then win: fewer bytes than `Chains`, by the count of the kernels.
