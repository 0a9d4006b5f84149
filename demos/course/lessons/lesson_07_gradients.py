# %% [markdown]
# # 7. Autodiff and the joint graph: what to keep, what to recompute
#
# **Goals**: after this lesson you can derive a gradient rule, read a joint graph, and decide which
# values to keep for the backward pass.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy; the last cells need PyTorch.
#
# The gradient of a program is a program. From the result backwards, each op hands its gradient to
# its operands by a rule of its own. First with `stack.mini`, a whole compiler in one file, where
# the rule is one line of the op's record; then with the real one, where the question is memory.

# %%
import numpy as np

import stack.mini as mini
from stack.demos.course.show import has


def loss(x, w):
    hidden = mini.tanh(x @ w)
    return mini.sum(hidden * hidden)


rng = np.random.default_rng(0)
x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 3), (3, 5)))
func = mini.trace(loss, x, w)
print(func)

# %%
joint = mini.grad(func)
print(joint)

# %% [markdown]
# `grad` gives the **joint** program: the result, then its gradient by each parameter. Look for
# `tanh`: it is computed once, and read by both halves, because equal nodes are one object. And
# look at the products: the gradient of a `dot` is a `dot` with its rule rearranged.
#
# A gradient is checked against differences, in double precision.

# %%
exact = [a.astype(np.float64) for a in (x, w)]
value, to_x, to_w = joint.interpret(*exact)
step = np.zeros_like(exact[1])
step[1, 2] = 1e-6
(up,), (down,) = (func.interpret(exact[0], exact[1] + s) for s in (step, -step))
print("by difference", (up - down) / 2e-6, "by the rules", to_w[1, 2])

# %% [markdown]
# In training, the forward pass runs first and the backward pass later. What the backward pass
# reads of the forward pass has to be **kept**: written once, held all the time between, read
# once. Or it is computed again from something that is kept. Which is cheaper? The compiler cuts
# the joint graph in two where the sum of bytes and of repeated work is least (a minimum cut).

# %%
if has("torch"):
    import torch

    from stack.calls.training import train_runs
    from stack.explore.lowering import Settings
    from stack.explore.table import table
    from stack.explore.target import ExampleCall

    def step_loss(x, w):
        hidden = torch.softmax(x @ w, -1)
        return (hidden * hidden).sum()

    args = (torch.randn(64, 128), torch.randn(128, 256))
    settings = Settings("mlir", machine="avx2")  # graphs for a named machine, which are not run
    found = train_runs(ExampleCall("step_loss", step_loss, args, "torch"), settings)
    for note in found["joint"].records[-1].notes:
        print(note)
    print(found["joint"].records[-1].text[:2600])

# %% [markdown]
# The maximum and the sum of each row are kept: a few hundred bytes, which save a reduction. The
# table of weights is computed again from them: two cheap ops on each element, and 65 kB less to
# write and read. This is what flash attention keeps in training, found by counting.

# %%
if has("torch"):
    rows = [
        [name, len(run.kernels), f"{sum(k.bytes for k in run.kernels) / 1e3:.0f} kB"]
        + [", ".join(k.name for k in run.kernels)]
        for name, run in found.items()
        if run.kernels
    ]
    print(table(["graph", "kernels", "bytes", "names"], rows))

# %% [markdown]
# ## Exercise
#
# A gradient rule, the price of keeping, and the classic of checkpointing: n layers, of which only
# some are kept.
