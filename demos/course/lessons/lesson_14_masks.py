# %% [markdown]
# # 14. A mask of one's own
#
# **Goals**: after this lesson you can write an attention mask as a function of positions, derive a
# kernel from it, and count the blocks that the kernel need not compute.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy.
#
# Attention lets each query see some keys and not others. A **causal** mask hides later keys. A
# **sliding window** also hides keys that are too far back. Documents that are packed into one
# sequence must not see each other. Each of these is a function of the position of the query (the
# row), the position of the key, and sometimes of data.

# %%
import numpy as np

import stack.mini as mini
from stack.demos.course.numpy_program import lowered, traced

row, key = np.arange(8)[:, None], np.arange(8)[None, :]


def picture(mask):
    """Rows of a mask as text: # is seen, . is hidden."""
    return "\n".join("".join("#" if seen else "." for seen in line) for line in mask)


print(picture(row >= key))

# %% [markdown]
# A hidden score is set to -inf before the softmax. Then its weight is exp(-inf) = 0, and the other
# weights still have the sum 1. Setting the weight to 0 after the softmax is wrong: the rest then
# has a sum below 1.
#
# A library of kernels has one kernel for each kind of mask. A compiler needs none: the mask is part
# of the program, and is fused like everything else. `mini.iota(shape, axis)` has the position of
# each element along an axis.


# %%
def softmax(x):
    weights = mini.exp(x - mini.max(x, axis=-1, keepdims=True))
    return weights / mini.sum(weights, axis=-1, keepdims=True)


def causal(q, k, v):
    scores = q @ k.T / q.shape[1] ** 0.5
    row, key = mini.iota(scores.shape, 0), mini.iota(scores.shape, 1)
    return softmax(mini.where(row >= key, scores, -np.inf)) @ v


args = [np.zeros((64, 16))] * 3
run = lowered(traced(causal, *args), "fused")
print([node.op for node in run.func("fused").nodes if node.op not in ("const", "item")])
print(run["streamed"].notes[-1].splitlines()[0])

# %% [markdown]
# One op `stream`, thus one kernel: the mask did not prevent flash attention (lesson 5).
#
# A kernel works on blocks of queries and keys. A block in which every score is hidden need not be
# computed at all. A block in which none is hidden needs no mask. Only the others need both. So the
# number of blocks of each kind says how much time a mask saves.

# %%
row, key = np.arange(256)[:, None], np.arange(256)[None, :]
for name, mask in (("causal", row >= key), ("window of 64", (row >= key) & (row - key < 64))):
    seen = mask.reshape(4, 64, 4, 64).mean((1, 3))
    print(f"{name}: {(seen == 0).sum()} of 16 blocks hide all, {(seen == 1).sum()} hide none")

# %% [markdown]
# ## Exercise
#
# A window as a function of positions, attention with this window, and the blocks of any mask.
