# %% [markdown]
# # 5. From softmax to flash attention, by algebra
#
# **Goals**: after this lesson you can derive online softmax, merge two states of a row, and follow
# the compiler from softmax to a flash attention kernel.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# Attention is softmax(q kT) v. Computed literally it makes a table of n x n weights,
# writes it to memory, and reads it back. The table is what hurts. In 2022 *flash attention*
# computed the same without it. Here we derive it, and then watch the compiler derive it: it has
# no pattern for attention.

# %%
import numpy as np
import torch

import stack

rng = np.random.default_rng(0)
scores = rng.standard_normal(12)
values = rng.standard_normal((12, 3))


def attend(scores, values):
    """Softmax of a row of scores, times values: three passes over the row."""
    top = scores.max()
    weights = np.exp(scores - top)
    return (weights @ values) / weights.sum()


exact = attend(scores, values)
print(exact)

# %% [markdown]
# Three reductions over one axis, each depending on the one before: the maximum m, the sum l of
# exp(s - m), and the sum o of exp(s - m) v. Why subtract m at all? Because exp(100) is infinite
# in f32. Any m would do, as long as it is about as large as the scores: it cancels in o / l.
#
# So walk along the row with the maximum *so far*. When a larger one comes, everything summed
# until then was measured against the old m. One factor puts that right: exp(m_old - m_new).

# %%
m, l, o = -np.inf, 0.0, np.zeros(3)
for s, v in zip(scores, values, strict=True):
    new = max(m, s)
    correction = np.exp(m - new)
    l = l * correction + np.exp(s - new)
    o = o * correction + np.exp(s - new) * v
    if new != m:
        print(f"maximum {m:6.2f} -> {new:6.2f}: what was summed is multiplied by {correction:.3f}")
    m = new
print(o / l, "error", abs(o / l - exact).max())

# %% [markdown]
# One pass, three numbers of state, no row of weights anywhere. In general: a reduction sums terms
# F(x, r) that depend on an earlier reduction r over the same axis. If there is an **action** A
# with F(x, r') = A(r, r') F(x, r), then the sum can be corrected when r moves to r', and one loop
# does all. For exp(x - r) it is A = exp(r - r'). For x / r it is r / r'. For a plain product x *
# r, r' / r.
#
# The compiler searches for this action. The program has no word about attention:


# %%
def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / 8
    return torch.softmax(scores, -1) @ v


args = tuple(torch.randn(1, 2, 256, 64) for _ in range(3))
run = stack.compile(attention, *args).run
print(run["streamed"].notes[-1])

# %% [markdown]
# `s0`, `s1`, `s2` are the maximum, the sum and the weighted sum; `A` is the correction that we
# found by hand. The result is an op `stream`. Its second block, `correct`, is the algebra above:

# %%
print(run.diff("laid-out", "streamed"))

# %% [markdown]
# The plain loop nest of the stream (lesson 4) is the loop that we wrote: one key in each iteration,
# for each element of the result. Attribute `online` says that its iterations rescale and add, so
# that any number of keys may be added at once.


# %%
def heads(q, k, v):
    o = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
    return o


three = tuple(a[0] for a in args)
print(stack.compile(heads, *three, schedule={"o": "bind i cores"}).run.steps("o").steps[0].func)

# %% [markdown]
# A list of steps makes flash attention of it. `split r 64; block r.1` rescales once for 64 keys,
# instead of once for each: the maximum, the sum and the weighted sum of a block become loops that
# only add. `vectorize` makes tiles of them, and `tensorize` makes matrix products of two of these.
# You need no GPU to read the kernel.

# %%
from stack.explore.lowering import Settings, inspect_target  # noqa: E402
from stack.explore.target import ExampleCall  # noqa: E402

steps = "split j 64; split r 64; block r.1; vectorize c; vectorize r.1; vectorize k; vectorize j.1;"
steps += " tensorize; bind i grid; bind j.0 grid; launch 4 stages=3"
target = ExampleCall("heads", heads, tuple(a.half() for a in three), "torch")
gpu = inspect_target(target, Settings("triton", machine="sm_90", schedules=(f"o: {steps}",)))
print(gpu.kernels[0].text[gpu.kernels[0].text.index("def kernel") :])

# %% [markdown]
# Under a causal mask a row sees no later keys. With 64 rows and 64 keys in a block, 6 of 16 blocks
# hide all of their scores, 6 hide none, and 4 on the diagonal hide some. A hidden score is -inf. It
# changes no state: not the maximum, and not the sums, because exp(-inf) = 0. So blocks that hide
# all scores may be left out. Step `bound r.0 where=cut` compares the positions, and makes two
# loops. The first runs the blocks that hide nothing, without the mask. The second runs the block on
# the diagonal.


# %%
def causal(q, k, v):
    later = torch.arange(256)[None, :] > torch.arange(256)[:, None]
    o = torch.softmax((q @ k.transpose(-1, -2) / 8).masked_fill(later, -torch.inf), -1) @ v
    return o


target = ExampleCall("causal", causal, tuple(a.half() for a in three), "torch")
for list_ in (steps, steps.replace("bind i", "bound r.0 where=cut; bind i")):
    gpu = inspect_target(target, Settings("triton", machine="sm_90", schedules=(f"o: {list_}",)))
    lines = gpu.kernels[0].text.splitlines()
    print(*(n for n in lines if "for r_0" in n or "where(later" in n), sep="\n", end="\n\n")

# %% [markdown]
# What does it save? Bytes. Count those of all kernels with and without the pass.

# %%
apart = stack.compile(attention, *args, passes="canonicalize,decompose,layout,fuse").run
for name, made in (("streamed", run), ("not streamed", apart)):
    moved = sum(k.bytes for k in made.kernels) / 1e6
    print(f"{name:13} {len(made.kernels)} kernels, {moved:.2f} MB")

# %% [markdown]
# Where the algebra does not work, the pass says so. A softmax whose weights are also a result
# needs the whole row at the end:


# %%
def with_weights(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2), -1)
    return weights @ v, weights


for note in stack.compile(with_weights, *args).run["streamed"].notes:
    print(note.splitlines()[0])

# %% [markdown]
# The state can also be merged: two halves of a row, each with its own (m, l, o), make the state
# of the whole. This is how one row is spread over many processors, in decoding with a long cache.
#
# ## Exercise
#
# Write the merge, and the correction for another family of reductions.
