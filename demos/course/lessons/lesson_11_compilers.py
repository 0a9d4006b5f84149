# %% [markdown]
# # 11. Four compilers side by side
#
# **Goals**: after this lesson you can read a comparison of compilers without being misled by noise,
# by library calls or by wrong results.
#
# **Time**: 30 minutes. **Needs**: `.[torch,mlir]`; JAX, TVM and C++ for the peers.
#
# PyTorch's Inductor, XLA, TVM and this one are given the same function. What did each fuse, how
# many kernels run, how fast, and how right? And: when is such a table honest?

# %%
import torch

from stack.demos.course.show import QUICK
from stack.explore.table import table
from stack.measure.compare import compare, describe
from stack.measure.systems import capture_program
from stack.measure.timing import NOISY
from stack.run.specs import parse_backends
from stack.run.trace import find_frontend


def block(x, w, g):
    scaled = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g
    return torch.nn.functional.silu(scaled @ w) + 1


args = (torch.randn(128, 256), torch.randn(256, 512), torch.randn(256))
program = capture_program(find_frontend(block, args, "torch"), block, args)
print(program.func)

# %% [markdown]
# A peer gets the program by two ways: `ir` is our imported function, executed op by op with
# functions of its framework, `native` is the user's own function through its own front door. A fair
# table shows both: who only measures the replay may be measuring the replay.
#
# First the frameworks without a compiler, and XLA.

# %%
first = compare([program], parse_backends("eager" if QUICK else "eager,xla"), rounds=5)
print(describe(first))

# %% [markdown]
# Three columns need care.
#
# - `kernels`: what is counted differs, and the lines below the table say what. A library call is
#   no generated kernel.
# - `vs ours`: the median of the ratios by rounds, with its quartiles. If these are more than 5 %
#   apart, the table says `noisy`: such a ratio is no result.
# - `error`: against the same program in double precision, relative to the largest value. A faster
#   program that is wrong is no faster program.
#
# The last table is fusion, by source line: numbers of kernels, L for a library call. Who puts
# both lines of `block` in one kernel?
#
# Now one that compiles C++ (Inductor takes some seconds), and one that searches (TVM; the seconds
# given are for the search). Both get our function alone here, to save time.

# %%
peers = "" if QUICK else "inductor"
second = compare([program], parse_backends(peers), rounds=5, ir_only=(peers,)) if peers else first
print(describe(second))

# %%
tvm = parse_backends("tvm{seconds=1}")
third = compare([program], tvm, rounds=5, ir_only=("tvm",)) if peers else first
print(table(["system", "via", "ms", "note"], [
    [r["system"], r["via"], r["run_ms"], r["note"]] for r in third.rows
]))  # fmt: skip

# %% [markdown]
# The same on the command line, as a table, as JSON, or as a page with the generated code of each
# compiler beside ours for every source line:
#
#     stackc compare FILE.py:block --with inductor,xla,tvm --html compare.html
#
# A student who wants a ratio to hold takes more rounds, a quiet machine, and the same inputs for
# all; and reads only ratios within one run.

# %%
for row in first.rows:
    if row["run_ms"]:
        share = row["run_ms_spread"] / row["run_ms"]
        told = "noisy" if share > NOISY else "still"
        print(f"{row['system']:12} {row['via']:7} spread {100 * share:.0f} % of its time: {told}")
for found in {id(f): f for f in (first, second, third)}.values():
    found.close()

# %% [markdown]
# ## Exercise
#
# Read such tables with code: an honest ratio, the compiler that fused most, and those that are
# wrong.
