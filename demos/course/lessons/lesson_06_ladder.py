# %% [markdown]
# # 6. From a matmul to tensor cores, in six schedules
#
# **Goals**: after this lesson you can explain each of six schedules of a matmul by what it loads
# and shares, and count the memory transactions of a warp.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy; the last cell needs NVRTC.
#
# One program, C = A B in bf16. Six schedules of it, each a line of text, from a thread for each
# element to pipelined tensor cores. The compiler makes the loops, the interpreter checks them on
# this machine, and NVRTC compiles them for an H100 that need not be here.

# %%
from stack.backends.cuda import nvrtc
from stack.demos.gemm_ladder import LADDER, build, check, kernel_text, lowered, matmul, show
from stack.ir.node import walk

for rung in LADDER:
    print(f"{rung.name:10} {rung.schedule:52} {rung.adds}")

# %% [markdown]
# Begin at the bottom. `m=32@grid` cuts the rows into blocks of the grid, `m=1@lane` gives each
# lane of a warp one row: values have the axes warp and lane first. Lanes that go down a column
# read 32 rows at once, from 32 places in memory. `coalesced` turns that: lanes go along a row,
# and one access serves a warp.

# %%
naive, coalesced = (lowered(rung, matmul(64, 64, 64)) for rung in LADDER[:2])
print(naive)

# %%
print(coalesced)

# %% [markdown]
# `shared` brings blocks of both operands to memory that the threads of a block share, so that
# each number is fetched once for 32 uses. `register` computes 8 x 8 results in each thread: 16
# loads for 64 multiplications. `tensor` hands products of small tiles to the tensor cores.
# `pipelined` copies the blocks of later steps while this one is multiplied.
#
# The rungs differ in the ops that multiply and that load operands; here they are counted.

# %%
COUNTED = ("fma", "mma_sync", "load_matrix", "async_copy", "alloc", "loop", "load", "store")


def counts(func):
    ops = [node.op for _, node in walk(func.body)]
    return {op: ops.count(op) for op in COUNTED if op in ops}


for rung in LADDER:
    print(f"{rung.name:10}", counts(lowered(rung, matmul(256, 256, 512))))

# %% [markdown]
# Each rung means the same product: the interpreter runs it on a small one, with sizes that no
# block divides, and compares with double precision. Here the lower three; the others take half a
# minute, in `python -m stack.demos.gemm_ladder`.

# %%
print(show([{"name": LADDER[1].name, "checked": check(LADDER[1])}]))

# %% [markdown]
# NVRTC turns the printed CUDA C++ into machine code, and tells what a thread needs of registers.

# %%
need = nvrtc.missing_compiler()
if need is not None:
    print("not compiled here:", need)
else:
    for rung in (LADDER[0], LADDER[4]):
        _, source, binary = build(rung, 1024, "sm_90")
        print(f"{rung.name}: {binary.registers} registers, {source.threads} threads in a block")
    print(kernel_text(source)[:1800])

# %% [markdown]
# On a machine with an NVIDIA GPU, `python -m stack.demos.gemm_ladder --table` races all six
# beside cuBLAS.
#
# ## Exercise
#
# Write two rungs yourself, and say why the bottom one is slow.
