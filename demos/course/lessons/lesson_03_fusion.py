# %% [markdown]
# # 3. Fusion: what may share a kernel, and what should
#
# **Goals**: after this lesson you can decide whether two ops may share a kernel and whether they
# should, write a fusion rule, and measure what it gains.
#
# **Time**: 60 minutes. **Needs**: PyTorch and MLIR (`pip install '.[torch,mlir]'`).
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
        print("   did not fuse {} and {}: {}".format(*told))

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
# two times are closer than their spreads, they say nothing.
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
# ## A pass of your own, outside of this repository
#
# In a terminal, in any folder. This writes a package: a pass, its tests, a page of commands.
#
# ```sh
# stackc new pass wide --kind horizontal
# cd wide
# python -m pytest -q
# ```
#
# Its rule joins *siblings*: two loops that read one value, neither of which reads the other. The
# built-in pass does not fuse them. Something to try it on goes into `two.py`, beside `wide.py`:
#
# ```python
# # two.py
# import torch
#
#
# def two(x):
#     return torch.relu(x), x * x
# ```
#
# `--passes` says what to change of the default pipeline: here the built-in pass leaves, and yours
# (class `Wide` of `wide.py`) runs at the end of stage `fused`, in its place. Beside it, built in:
#
# ```sh
# stackc dump two.py:two -i 'f32[2048,2048]' --passes 'default' -o apart
# stackc dump two.py:two -i 'f32[2048,2048]' --passes 'default,-fuse,+wide.py:Wide@fused' -o joined
# stackc explain apart relu mul
# stackc explain joined relu mul
# ```
#
# Two kernels were `apart`, one is `joined`: x is read once, 50 MB travel and not 67. Now change
# the rule. `legal` in `wide.py` gets two groups, and may ask each for its `members` (nodes),
# `inputs`, `outputs`, `flops` of an element, `reduces`, and `kind` ("loop", "reduction", "gemm").
# A kernel with many results needs many registers; have yours write no more than two:
#
# ```python
# # wide.py
# from dataclasses import dataclass, replace
# from typing import ClassVar
#
# import stack
# from stack.passes.fuse import Fuse
# from stack.rewrite.fusion import FusionRule
# from stack.rewrite.verdict import NOT_MINE, Ok, Why
#
#
# class Siblings(FusionRule):
#     """Two loops that read one value, where no more than two results are written."""
#
#     siblings = True
#     stage = 1
#
#     def legal(self, producer, consumer, maps):
#         if producer.kind != "loop" or consumer.kind != "loop":
#             return NOT_MINE
#         written = len(producer.outputs) + len(consumer.outputs)
#         return Ok if written <= 2 else Why(f"{written} results, at most 2 are wanted")
#
#
# @dataclass(frozen=True)
# class Wide(stack.Pass):
#     """Fuse, with siblings too."""
#
#     name: ClassVar[str] = "wide"
#
#     def run(self, func, log):
#         return replace(Fuse(), rules=(f"{Siblings.__module__}:Siblings",)).run(func, log)
# ```
#
# Run the tests again (`stackc watch .` does at every save), then race: both pipelines of ours, and
# PyTorch op by op, in interleaved rounds of one run.
#
# ```sh
# python -m pytest -q
# stackc bench two.py:two -i 'f32[2048,2048]' --with eager --quick \
#     --passes 'default' --passes 'default,-fuse,+wide.py:Wide@fused'
# ```
#
# In the row of `stack-mlir default` the column of your pass is below 1.00x: it takes less time.
# `noisy` behind a ratio means that the machine was busy. Two kernels and one differ on any
# machine, and their bytes by `stackc show apart` and `stackc show joined`. `--with inductor,xla`
# sets other compilers beside both; the README that was written into `wide` has more commands.

# %% [markdown]
# ## Exercise
#
# Write the rule of a fusion pass: everything may be fused, except that one kernel holds at most
# one reduction. Then win: fewer bytes than `Chains`, by the count of the kernels.
