# %% [markdown]
# # 10. Sharding: one program on many devices
#
# **Goals**: after this lesson you can shard a few values and derive the rest, count the collectives
# and their bytes, and price a ring all-reduce.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy.
#
# A model that does not fit on one device is cut. You shard a few values; the rest follows
# from the same axis rules that gave fusion and tiling. What the rules cannot do without talking
# becomes a **collective**, and each has its bytes. No GPU and no network here: the ranks run in
# this process.

# %%
import numpy as np

import stack.mini as mini
from stack.demos.course.numpy_program import traced
from stack.demos.partition import partition
from stack.explore.sharding import drawing, table_of
from stack.explore.table import table
from stack.passes.canonicalize import Canonicalize
from stack.rewrite import Pipeline
from stack.run.mesh import simulate


def mlp(x, up, down):
    hidden = mini.maximum(x @ up, 0.0)
    return hidden @ down


rng = np.random.default_rng(0)
shapes = ((64, 128), (128, 512), (512, 128))
arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
func = Pipeline([Canonicalize()]).run(traced(mlp, *arrays)).func
print(func)

# %% [markdown]
# A mesh has named axes: `tp=4` is four devices in a row. `up: -, tp` says that the second axis of
# `up` is cut over tp, its first is whole. Watch what follows for `hidden`, and for the second
# product.

# %%
made = partition(func, "tp=4", ("x: -, -", "up: -, tp", "down: tp", "return: -, -"))
print(made.placed)

# %% [markdown]
# `hidden` is cut along its second axis, for free: the rule of the product has n in the result.
# The second product sums over that axis. Each rank has only some of the terms, so its result is a
# **partial sum**, `partial(sum: tp)`, until an all-reduce makes it whole. One collective for the
# whole perceptron: this is tensor parallelism as in Megatron, and nobody wrote a rule for it.

# %%
print(drawing(made.placed))
print(table_of(made.local))

# %% [markdown]
# The program of one rank is plain IR. All four run here, and agree with NumPy on one device.

# %%
x, up, down = arrays
found = simulate(made.placed, made.local, arrays, filler=np.nan)
print("largest error:", np.abs(found.results[0] - np.maximum(x @ up, 0) @ down).max())

# %% [markdown]
# Other places, other collectives. Count the bytes that a rank sends:

# %%
STRATEGIES = {
    "data": ("x: tp", "up: -, -", "down: -, -", "return: tp"),
    "tensor": ("x: -, -", "up: -, tp", "down: tp", "return: -, -"),
    "sharded weights": ("x: tp", "up: tp", "down: tp", "return: tp"),
    "tensor, the wrong way": ("x: -, -", "up: tp", "down: -, tp", "return: -, -"),
}
rows = []
for name, shard in STRATEGIES.items():
    made = partition(func, "tp=4", shard)
    found = simulate(made.placed, made.local, arrays, filler=np.nan)
    ops = ", ".join(f"{n} {op}" for op, n in found.counts.items()) or "none"
    rows.append([name, ops, f"{sum(found.sent.values()) / 1024:.0f} KiB"])
print(table(["strategy", "collectives", "sent by a rank"], rows))

# %% [markdown]
# What a collective costs on a network is latency and bytes. An all-reduce of n bytes over p ranks
# by a ring sends 2 (p - 1) / p n bytes from each rank, in 2 (p - 1) steps; by a tree, more bytes
# and fewer steps. `python -m stack.demos.collectives` measures where they cross.
#
# ## Exercise
#
# Place an attention-like pair of products with one collective, and do the arithmetic of the ring.
