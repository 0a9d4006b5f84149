# %% [markdown]
# # 1. One function through all stages
#
# **Goals**: after this lesson you can name the stages from a framework's graph to assembly, read
# the IR and compare two stages, and find why two ops share a kernel or do not.
#
# **Time**: 45 minutes. **Needs**: PyTorch and MLIR (`pip install '.[torch,mlir]'`).
#
# A compiler for tensors takes a function that was written one operation at a time, and makes
# machine code that does several at once. Here we follow one function the whole way, and look at
# every text between the two ends. Nothing in this lesson needs a GPU.

# %%
import torch

import stack
from stack.demos.course.show import Picture, show


def layer(x, w, b):
    hidden = x @ w + b
    return torch.softmax(hidden, dim=-1)


args = (torch.randn(32, 64), torch.randn(64, 128), torch.randn(128))
compiled = stack.compile(layer, *args)
run = compiled.run
print((compiled(*args) - layer(*args)).abs().max())
print(run.stages)

# %% [markdown]
# `run` is the record of the compilation. A **stage** is the program as text at one moment. The
# first is the framework's own text, the last is assembly; those between are one small language of
# this compiler, the **IR** (intermediate representation). Each line of it names a value, the op
# that makes it, its type, and the source line that it comes from.

# %%
print(run["imported"].text)

# %% [markdown]
# Read it from the top. `dot` is the product; its `rule` says what it does with its axes: `k`
# is an axis of both operands and not of the result, so it is summed over. `softmax` is no op of the
# IR: it came in as a maximum, a difference, an exponential, a sum and a quotient. Five ops on one
# array of 32 x 128 would be five trips through memory.
#
# A **pass** takes a function and gives a function. The stage table says which passes ran, how
# long each took, and whether it changed anything.

# %%
show(run)

# %% [markdown]
# The decisive change is stage `fused`: what shares a kernel becomes one `fusion` node, with a
# body. Names of values survive the passes, so a plain text diff tells what happened. `~` marks a
# line that only moved.

# %%
print(run.diff("canonical", "fused"))

# %%
show(Picture(run.func("fused")))

# %% [markdown]
# Two groups, thus two kernels: the product, and everything of the softmax in one pass over each
# row. `explain` says why they are not one.

# %%
print(run.explain("softmax"))

# %% [markdown]
# Below the groups, programs get loops and memory. In stage `tiled` a group is a kernel of blocks
# of values; in stage `loop` there are vectors, threads and addresses. Then other people's
# compilers take over: MLIR, LLVM, assembly.

# %%
print(run["loop"].text[:1800])

# %%
for kernel in run.kernels:
    print(kernel, kernel.text.count("\n"), "lines of MLIR")

# %% [markdown]
# Every stage of the IR still means the same: `interpret` runs it in NumPy, one line for each op,
# and the printed text reads back to the very same object.

# %%
arrays = [a.numpy() for a in args]
for stage in run.records:
    if stage.func is not None:
        error = abs(stage.func.interpret(*arrays) - layer(*args).numpy()).max()
        print(f"{stage.name:10} {error:.1e}", stack.parse(stage.text) is stage.func)

# %% [markdown]
# ## Exercise
#
# Three questions about a run, each answered by a function of the run, so that the answer holds
# for any program.
