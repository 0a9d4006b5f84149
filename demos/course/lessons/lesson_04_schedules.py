# %% [markdown]
# # 4. Layout and tiles: schedules by hand
#
# The same loops in another order, cut into blocks, put on other hardware: that is a **schedule**.
# It changes no result and can change the time tenfold. First, though, the **layout**: in which
# order the axes of an array lie in memory.

# %%
import torch

import stack
from stack.demos.course.show import race, show
from stack.explore.table import table


def product(x, w):
    return x.transpose(0, 1).transpose(0, 1) @ w.t()


args = (torch.randn(256, 512), torch.randn(384, 512))
run = stack.compile(product, *args).run
print(run.diff("imported", "laid-out"))

# %% [markdown]
# Three transposes, and none is left: two cancel, one vanishes into the rule of the product, which
# now reads `n k`. A layout is decided where it costs nothing.
#
# Now the loops. A product has three axes. By name: m and n come out, k is summed. A schedule says
# for each axis which block of it is taken at once, and what runs that block.

# %%
print(run.func("scheduled").nodes[0].attrs["schedule"])


# %%
def multiply(x, w):
    c = x @ w
    return c


args = (torch.randn(256, 512), torch.randn(512, 384))
print(stack.compile(multiply, *args, schedule={"c": "m=4@unroll n=32@vector"}).run["tiled"].text)

# %% [markdown]
# Read the innermost loop: 4 rows of a block stay in registers (`@unroll`), 32 columns are vectors
# (`@vector`), and k runs serially. Each turn loads 4 + 32 numbers for 4 x 32 multiplications:
# this ratio is what blocks are for. Larger blocks load less, until the registers run out.

# %%
SCHEDULES = (
    "m=1@unroll n=16@vector",
    "m=2@unroll n=32@vector",
    "m=4@unroll n=32@vector",
    "m=4@unroll n=64@vector",
    "m=16@unroll n=64@vector",
)
made = {"chosen by the policy": stack.compile(multiply, *args)}
for schedule in SCHEDULES:
    try:
        made[schedule] = stack.compile(multiply, *args, schedule={"c": schedule})
    except stack.errors.StackError as error:
        print(f"{schedule}: {str(error).splitlines()[0]}")
rows = []
for schedule, timing in race({s: lambda c=c: c(*args) for s, c in made.items()}).items():
    rate = 2 * 256 * 512 * 384 / timing.median * 1e-9
    rows.append([schedule, f"{1e3 * timing.median:.2f} ms", f"{rate:.0f} Gflop/s"])
print(table(["schedule", "time", "rate"], rows))

# %% [markdown]
# A schedule that does not fit is refused before anything is built, with the axis, the rule and
# the number: above, one that asks for more registers than this machine has; below, an axis that
# is none.

# %%
try:
    stack.compile(multiply, *args, schedule={"c": "q=4@unroll"})
except stack.errors.StackError as error:
    print(error)

# %% [markdown]
# On a GPU there are more places to put an axis: blocks of a grid, warps, lanes. The text is the
# same. This machine need not have one: the kernel is made and printed for `sm_90`.

# %%
from stack.explore.lowering import Settings, inspect_target  # noqa: E402
from stack.explore.target import Program  # noqa: E402

target = Program("multiply", multiply, tuple(a.bfloat16() for a in args), "torch")
settings = Settings("triton", machine="sm_90", schedules=("c: m=64 n=64 k=32 stages=3 warps=4",))
gpu = inspect_target(target, settings)
show(gpu.func("scheduled").nodes[0].attrs["schedule"])
print(gpu.kernels[0].text[-1400:])

# %% [markdown]
# ## Exercise
#
# The arithmetic behind a schedule: what a block loads, what it holds, and a schedule of your own
# that beats a poor one by count and not by luck.
