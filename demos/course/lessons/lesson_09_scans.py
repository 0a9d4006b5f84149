# %% [markdown]
# # 9. Scans: loops that are not as serial as they look
#
# **Goals**: after this lesson you can turn a recurrence into a scan by an associative function, and
# compare sequential, parallel and tiled scans.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy; the last cells need `.[torch,mlir]`.
#
# h[t] = a[t] h[t-1] + x[t] is the heart of state space models and of linear attention. Each step
# needs the one before, so it seems to take n steps. It does not: what is carried is a *function*,
# functions compose, and composition is associative.

# %%
import numpy as np

import stack
from stack.demos.course.show import has
from stack.explore.table import table
from stack.ops.scan import associative, gated
from stack.ops.scan.associative import gate_combine
from stack.ops.scan.forms import Count, blelloch, doubled, sequential

rng = np.random.default_rng(0)
a, x = rng.uniform(0.5, 1, 16), rng.standard_normal(16)
h, serial = 0.0, []
for gate, value in zip(a, x, strict=True):
    h = gate * h + value
    serial.append(h)
print(np.round(serial, 3))

# %% [markdown]
# Step t is the map h -> a h + b. First (a1, b1), then (a2, b2), is the map h -> a2 (a1 h + b1) +
# b2, that is (a1 a2, a2 b1 + b2). Parentheses may be set as one likes:

# %%
steps = list(zip(a, x, strict=True))
left = gate_combine(np, gate_combine(np, steps[0], steps[1]), steps[2])
right = gate_combine(np, steps[0], gate_combine(np, steps[1], steps[2]))
print(left, right)

# %% [markdown]
# So log n rounds do: in round k, every element is combined with the one 2^k before it. More work
# in all, n log n, and far fewer steps one after the other. Blelloch's goes up a tree of pairs and
# down again: twice the rounds, and 2 n combinations.

# %%
rows = []
for form in (sequential, doubled, blelloch):
    for length in (16, 1024):
        gates, values = rng.uniform(0.5, 1, length), rng.standard_normal(length)
        count = Count()
        _, found = form(gate_combine, (gates, values), count)
        _, wanted = sequential(gate_combine, (gates, values), Count())
        error = f"{abs(found - wanted).max():.0e}"
        rows.append([form.__name__, length, count.steps, count.combinations, error])
print(table(["form", "length", "steps", "combinations", "error"], rows))

# %% [markdown]
# Which one is right for a machine? On a GPU a tile is scanned in registers and carries its state
# to the next: n / tile steps; `ops/scan/forms.py` has these ways and more. As an operator
# it is called on arrays:

# %%
gates = rng.uniform(0.5, 1, (64, 32)).astype(np.float32)
inputs = rng.standard_normal((64, 32)).astype(np.float32)
state = np.zeros(32, np.float32)
wanted = state
for gate, value in zip(gates, inputs, strict=True):
    wanted = gate * wanted + value
print(abs(gated(gates, inputs, state)[-1] - wanted).max())

# %% [markdown]
# Any associative function makes a scan. The declaration checks that it is one, on sampled values:


# %%
def largest(np, earlier, later):
    """The largest value so far."""
    return (np.maximum(earlier[0], later[0]),)


best = associative("course.best", largest)
print(best(np.array([1.0, 3.0, 2.0, 5.0, 4.0], np.float32)))


def halved(np, earlier, later):
    """Not associative: the mean of two."""
    return ((earlier[0] + later[0]) / 2,)


try:
    associative("course.halved", halved)
except stack.errors.StackError as error:
    print(error)

# %% [markdown]
# With PyTorch, an operator goes through the compiler, and is fused with its neighbours:

# %%
if has("torch") and has("torch_mlir"):
    import torch

    layer = lambda gate, x, first: torch.tanh(gated(torch.sigmoid(gate), x, first))
    args = [torch.from_numpy(a) for a in (gates, inputs, state)]
    compiled = stack.compile(layer, *args)
    print((compiled(*args) - layer(*args)).abs().max())
    for kernel in compiled.run.kernels:
        print(kernel.name, kernel.kind, ", ".join(kernel.ops))

# %% [markdown]
# ## Exercise
#
# A combination of your own, and the scan by tiles that GPUs use.
