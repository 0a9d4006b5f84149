# %% [markdown]
# # 4. Layout and loops: schedules by hand
#
# **Goals**: after this lesson you can read a kernel as a list of steps, write such a list for a
# softmax and a matmul, and count what a tile loads.
#
# **Time**: 60 minutes. **Needs**: PyTorch and MLIR (`.[torch,mlir]`); the last cell: Triton.
#
# A **schedule** reorders loops, tiles them, and maps them to hardware. It changes no result and
# can change the time a hundredfold. First, though, the **layout**: the order of an array's axes
# in memory.

# %%
import torch

import stack
from stack.demos.course.show import QUICK, has, race, show
from stack.explore.table import table


def product(x, w):
    return x.transpose(0, 1).transpose(0, 1) @ w.t()


run = stack.compile(product, torch.randn(256, 512), torch.randn(384, 512)).run
print(run["captured"].text)
print(run.diff("imported", "laid-out"))

# %% [markdown]
# Three transposes are captured, and none is left. Two cancel as soon as they are imported, so the
# diff shows only the third: it vanishes into the rule of the product, which now reads `n k`. A
# layout is decided where it costs nothing.
#
# Now the loops. The compiler first writes every kernel as its **plain loop nest**: one loop for
# each axis, one number at a time. Then it rewrites the nest step by step. These are the steps of
# a softmax, with the reasons of the policy that chose them.


# %%
def softmax(x):
    y = torch.softmax(x, -1)
    return y


x = torch.randn(512, 1000)
policy = stack.compile(softmax, x)
steps = policy.run.steps("y")
print(steps)
print(steps.steps[0].func)

# %% [markdown]
# The nest walks each row three times: for the maximum, for the sum of the exponentials, and for
# the division. It computes `exp` twice for each element. Step 1 stores the first result
# (`stage`), and later steps vectorize the row. `diff` shows what one step did:

# %%
print(policy.run.diff("y.step0", "y.step1"))

# %% [markdown]
# Your own schedule is a list of such steps. Start with threads alone, add vectors, then let each
# lane keep its own partial sum (`rfactor`), then store `exp`. Every list gives the same result:
# the compiler refuses a step that would change it.

# %%
LISTS = {
    "threads": "bind i cores",
    "and vectors": "split r 64 tail=peel; vectorize r.1; bind i cores",
    "and partial sums": "split r 64 tail=peel; vectorize r.1; rfactor r.0; bind i cores",
    "and exp once": "stage exp local; split r 64 tail=peel; vectorize r.1; rfactor r.0;"
    " bind i cores",
}


def compare(function, args, value, lists):
    """Print the time of each list of steps beside the time of the policy's."""
    made = {name: stack.compile(function, *args, schedule={value: s}) for name, s in lists.items()}
    made["the policy"] = stack.compile(function, *args)
    wanted = function(*args)
    for compiled in made.values():
        torch.testing.assert_close(compiled(*args), wanted, rtol=1e-4, atol=1e-4)
    times = race({name: lambda c=c: c(*args) for name, c in made.items()})
    best = times["the policy"].median
    rows = [[n, f"{1e3 * t.median:.2f} ms", f"{t.median / best:.1f}"] for n, t in times.items()]
    print(table(["steps", "time", "to the policy's"], rows))


compare(softmax, [x], "y", LISTS)

# %% [markdown]
# A product has three loops: i and j for the result, k for the sum.


# %%
def multiply(x, w):
    c = x @ w
    return c


size = 128 if QUICK else 256
args = [torch.randn(size, size), torch.randn(size, size)]
by_hand = "bind i cores"
print(stack.compile(multiply, *args, schedule={"c": by_hand}).run.steps("c").steps[0].func)

# %% [markdown]
# The nest loads one number of x and one of w for each multiplication. A **register tile** changes
# that: 8 rows of x and 32 columns of w are 8 + 32 loads for 8 x 32 multiplications. Seven steps
# make the tile:
#
# - `split i 8; split j 32` tile the result,
# - `reorder i.1 j.0` moves both loops inside a tile to the inside,
# - `vectorize j.1` makes the 32 columns one vector,
# - `unroll i.1` writes out the 8 rows, each with its own loop over k,
# - `compute_with k` fuses these loops, so that each vector of w is loaded once for 8 rows,
# - `bind i.0 cores` distributes the tiles over threads.

# %%
tile = "split i 8; split j 32; reorder i.1 j.0; vectorize j.1; unroll i.1; compute_with k"
kernel = stack.compile(multiply, *args, schedule={"c": f"{tile}; bind i.0 cores"}).run.steps("c")
print(kernel.steps[-1].func)

# %% [markdown]
# Read the loop over k: one load of 32 numbers of w, eight loads of one number of x, and eight
# multiplications of 32 numbers. Larger tiles load less, until the registers run out. The policy
# also packs panels of w into contiguous memory (`pack`), which pays off for large matrices.

# %%
TILES = {
    "plain": "bind i cores",
    "vectors": "split j 32; vectorize j.1; bind i cores",
    **{
        f"{m} x {n}": f"split i {m}; split j {n}; reorder i.1 j.0; vectorize j.1; unroll i.1;"
        " compute_with k; bind i.0 cores"
        for m, n in ((2, 32), (4, 32), (8, 32), (8, 64))
    },
}
compare(multiply, args, "c", TILES)

# %% [markdown]
# The compiler refuses an illegal step before it builds anything, and names the step, the axis and
# the rule. Below: an axis that does not exist, a loop that is bound twice, and a vector that
# exceeds the registers.

# %%
for wrong in ("split q 4", "bind i cores; bind i cores", "split k 4096; vectorize k.1"):
    try:
        stack.compile(multiply, *args, schedule={"c": wrong})
    except stack.errors.StackError as error:
        print(error)

# %% [markdown]
# The same on the command line: the policy's steps with their reasons, the kernel after a step, and
# a list of your own, given as text or in a file with one line `value: steps` for each kernel.
#
# ```sh parsed
# stackc dump matmul.py:matmul -i 'f32[512,512]' -i 'f32[512,512]' --steps -o r1
# stackc show r1 c.step2
# stackc opt r1:fused --schedule mine.txt --target avx512 --pass-pipeline='schedule{loops=cpu},tile'
# ```
#
# There is a short form too: tile sizes for the axes, as the policy for matrix products writes
# them. The compiler derives the rest. A GPU offers more hardware to bind an axis to: thread
# blocks, warps, lanes. You need no GPU to read the kernel: it is compiled and printed for
# `sm_90`.

# %%
print(stack.compile(multiply, *args).run.func("scheduled").nodes[0].attrs["schedule"])

# %%
if has("triton"):
    from stack.explore.lowering import Settings, inspect_target
    from stack.explore.target import ExampleCall

    args = (torch.randn(256, 512).bfloat16(), torch.randn(512, 384).bfloat16())
    target = ExampleCall("multiply", multiply, args, "torch")
    schedules = ("c: m=64 n=64 k=32 stages=3 warps=4",)
    gpu = inspect_target(target, Settings("triton", machine="sm_90", schedules=schedules))
    show(gpu.func("scheduled").nodes[0].attrs["schedule"])
    print(gpu.kernels[0].text[-1400:])

# %% [markdown]
# ## Exercise
#
# Work out the arithmetic of a tile: how much it loads and how many registers it needs. Then write
# a list of steps that loads less than the tile above, in the same number of registers.
