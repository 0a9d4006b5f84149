# %% [markdown]
# # 5. From softmax to flash attention, by algebra
#
# **Goals**: after this lesson you can derive online softmax, merge two states of a row, and follow
# the compiler from softmax to a flash attention kernel.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy; one cell needs Triton.
#
# Attention is softmax(q kT) v. Computed literally it makes a table of n x n weights,
# writes it to memory, and reads it back. The table is what hurts. In 2022 *flash attention*
# computed the same without it. Here we derive it, and then watch the compiler derive it: it has
# no pattern for attention.

# %%
import numpy as np

import stack
import stack.mini as mini
from stack.demos.course.numpy_program import lowered, traced
from stack.demos.course.show import has

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
# The compiler searches for this action. The program has no word about attention. It is written with
# `stack.mini`, which needs only NumPy, and lowered by the compiler; with PyTorch it would be
# `torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v`.


# %%
def softmax(x):
    weights = mini.exp(x - mini.max(x, axis=-1, keepdims=True))
    return weights / mini.sum(weights, axis=-1, keepdims=True)


def attention(q, k, v):
    scores = mini.dot("b i c, b r c -> b i r", q, k) / 8
    return mini.dot("b i r, b r j -> b i j", softmax(scores), v)


args = [rng.standard_normal((2, 256, 64)) for _ in range(3)]
func = traced(attention, *args)
run = lowered(func, "fused")
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
print(lowered(func, "tiled", "dot_1: bind i grid").steps("dot_1").steps[0].func)

# %% [markdown]
# A list of steps makes flash attention of it. `split r 64; block r.1` rescales once for 64 keys,
# instead of once for each: the maximum, the sum and the weighted sum of a block become loops that
# only add. `vectorize` makes tiles of them, and `tensorize` makes matrix products of two of these.
# A backend prints this kernel as Triton, line by line.

# %%
STEPS = "split j 64; split r 64; block r.1; vectorize c; vectorize r.1; vectorize k; vectorize j.1;"
STEPS += " tensorize; bind i grid; bind j.0 grid; launch 4 stages=3"
flash = lowered(func, "tiled", f"dot_1: {STEPS}")
print(flash.steps("dot_1").steps[-1].func)

# %%
if has("triton"):
    from stack.explore.lowering import Settings, inspect_target
    from stack.explore.target import IRText

    settings = Settings("triton", machine="sm_90", schedules=(f"dot_1: {STEPS}",))
    text = inspect_target(IRText("@attention", func), settings).kernels[0].text
    print(text[text.index("def kernel") :])

# %% [markdown]
# Under a causal mask a row sees no later keys. With 64 rows and 64 keys in a block, 6 of 16 blocks
# hide all of their scores, 6 hide none, and 4 on the diagonal hide some. A hidden score is -inf. It
# changes no state: not the maximum, and not the sums, because exp(-inf) = 0. So blocks that hide
# all scores may be left out. Step `bound r.0 where=cut` compares the positions, and makes two
# loops. The first runs the blocks that hide nothing, without the mask. The second runs the block on
# the diagonal.

# %%
causal = stack.parse("""
func @causal(%q: f32[2, 256, 64], %k: f32[2, 256, 64], %v: f32[2, 256, 64])
    -> (f32[2, 256, 64]) at tensor {
  %row = iota() {axis=1} : i32[2, 256, 256]
  %key = iota() {axis=2} : i32[2, 256, 256]
  %later = gt(%key, %row) : bool[2, 256, 256]
  %dots = dot(%q, %k) {rule="b i c, b r c -> b i r"} : f32[2, 256, 256]
  %scaled = div(%dots, 8.0:f32) : f32[2, 256, 256]
  %s = select(%later, -inf:f32, %scaled) : f32[2, 256, 256]
  %top = reduce(%s) {axes=[2], kind="max"} : f32[2, 256]
  %tops = broadcast(%top) {axes=[0, 1]} : f32[2, 256, 256]
  %shifted = sub(%s, %tops) : f32[2, 256, 256]
  %e = exp(%shifted) : f32[2, 256, 256]
  %sum = reduce(%e) {axes=[2], kind="sum"} : f32[2, 256]
  %sums = broadcast(%sum) {axes=[0, 1]} : f32[2, 256, 256]
  %weights = div(%e, %sums) : f32[2, 256, 256]
  %o = dot(%weights, %v) {rule="b i r, b r j -> b i j"} : f32[2, 256, 64]
  return %o
}
""")
for steps in (STEPS, STEPS.replace("bind i", "bound r.0 where=cut; bind i")):
    kernel = lowered(causal, "tiled", f"o: {steps}").steps("o").steps[-1].func
    lines = [line.strip().partition(" : ")[0] for line in str(kernel).splitlines()]
    shown = [n for n in lines if "serial" in n or ("-inf" in n and "select" in n)]
    print(*shown, sep="\n", end="\n\n")

# %% [markdown]
# What does it save? Bytes. Count those of all kernels with and without the pass.


# %%
def moved(func):
    """Bytes that kernels read and write, with one kernel for each node of the function."""
    return sum(
        node.type.bytes + sum(a.type.bytes for a in node.args)
        for node in func.nodes
        if node.op not in ("const", "item")
    )


unstreamed = lowered(func, "fused", passes="default,-stream")
for name, made in (("streamed", run), ("not streamed", unstreamed)):
    nodes = [n for n in made.func("fused").nodes if n.op not in ("const", "item")]
    print(f"{name:13} {len(nodes)} kernels, {moved(made.func('fused')) / 1e6:.2f} MB")

# %% [markdown]
# Where the algebra does not work, the pass says so. A softmax whose weights are also a result
# needs the whole row at the end:


# %%
def with_weights(q, k, v):
    weights = softmax(mini.dot("b i c, b r c -> b i r", q, k))
    return mini.dot("b i r, b r j -> b i j", weights, v), weights


for note in lowered(traced(with_weights, *args), "fused")["streamed"].notes:
    print(note.splitlines()[0])

# %% [markdown]
# The state can also be merged: two halves of a row, each with its own (m, l, o), make the state
# of the whole. This is how one row is spread over many processors, in decoding with a long cache.
#
# ## Exercise
#
# Write the merge, and the correction for another family of reductions.
