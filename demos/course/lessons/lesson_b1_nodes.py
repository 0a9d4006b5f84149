# %% [markdown]
# # b1. Build the compiler: types and nodes
#
# **Goals**: after this lesson you can represent a program as a graph of nodes, and make equal nodes
# one object.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# In eight steps you write a compiler: it traces a function of arrays, simplifies it, differentiates
# it, fuses it and compiles it to C. Your file is `compiler.py`. Each step appends a part to it, in
# which the bodies of two to four functions are missing. A finished version is `stack/mini.py`: the
# lessons use it to show what your part will do. Read it when you are done, not before.
#
# ## A program is a graph
#
# A node is one value of a program: an op, the nodes that it is computed from, its attributes and
# its type. `x * x` is one node `mul` whose two operands are the same node.

# %%
import stack.mini as mini

x = mini.param(mini.Type("f32", (2, 3)), "x")
square = mini.make("mul", x, x)
print(square.op, [a.op for a in square.args], square.type, square.type.bytes, "bytes")

# %% [markdown]
# ## Equal nodes are one object
#
# `make` first searches for a node with the same op, operands and attributes. If there is one, it is
# returned. This is called **interning**, or hash consing. It has three advantages.
#
# - A value that a program computes twice is one node, so it is computed once. Other compilers need
#   a pass for that, common subexpression elimination.
# - Two programs are equal if their results are the same object: comparing takes no time.
# - A node never changes, so a rewrite makes new nodes and old ones stay valid.

# %%
print(mini.make("mul", x, x) is square, mini.make("exp", x) is mini.make("exp", x))
zeros = mini.const(0.0), mini.const(-0.0)
print(0.0 == -0.0, zeros[0] is zeros[1])

# %% [markdown]
# The last line is a trap: 0.0 equals -0.0, but 1 / 0.0 is not 1 / -0.0. Two nodes must be equal
# only if no program can distinguish their values.
#
# The table of known nodes must not keep nodes alive that nothing uses any more. So it is a
# `WeakValueDictionary`: an entry disappears with the last reference to its node.
#
# ## Your part
#
# `python -m stack.demos.course start b1` writes `compiler.py`. Write `Type.bytes` and `make`. The
# table `OPS` comes with step b3: `OPS[op].infer(args, attrs)` is the type of the result.
