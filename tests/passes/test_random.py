"""Random programs through every pass and stage; what random programs found, as programs of a few
lines."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from executed import is_sound
from random_programs import Grower, Program, random_program

import stack.plugins as plugins
from stack.backends.mlir import BACKEND
from stack.ir import DTYPES, Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import decode, encode
from stack.rewrite import Pipeline, random_inputs
from stack.run.compile import compile_func, lower
from stack.run.record import Run
from stack.target import load

LOWER = ("distribute", "memory")  # these take what tile and distribute make
# these place a program on a mesh, and have tests of their own
PLACING = (
    *("autoshard", "data_parallel", "tensor_parallel", "zero"),
    *("context_parallel", "expert_parallel"),
)
QUICK, MANY = 15, 1500
MACHINES = {
    "mlir": ("generic", "avx2", "avx512", "amx", "neon"),
    "triton": ("sm_90",),
    "cuda": ("sm_90",),
}


def through_every_pass(program: Program) -> None:
    for name in plugins.names("stack.passes"):
        if name not in (*LOWER, *PLACING):
            after = Pipeline(name).run(program.func).func
            assert parse(str(after)) is after
            wrong = program.compare(after.interpret(*program.inputs))
            assert not wrong, f"after {name}: {wrong}\n{program.func}"


def through_every_stage(program: Program) -> None:
    func = program.func
    for _, spec in BACKEND.lowering.stages:
        for step in Pipeline(spec).passes:
            func = Pipeline([step]).run(func).func
            wrong = program.compare(func.interpret(*program.inputs))
            assert not wrong, f"after {step}: {wrong}\n{program.func}"


def for_other_machines(program: Program) -> None:
    """Lowers a program for machines that are not here, and interprets the kernels."""
    for name, targets in MACHINES.items():
        backend = plugins.load("stack.backends", name)
        for target in map(load, targets):
            kernels = lower(program.func, backend, Run("random"), target=target)
            wrong = program.compare(kernels.interpret(*program.inputs))
            assert not wrong, f"for {target.name} by {name}: {wrong}\n{program.func}"


def natively(program: Program) -> None:
    is_sound(compile_func(program.func, "mlir", options={"cache": False}), program)


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # overflow and nan are meant


@pytest.mark.parametrize("seed", range(QUICK))
def test_generated_programs_are_sound(seed: int) -> None:
    program = random_program(seed)
    verify(program.func)
    assert parse(str(program.func)) is program.func
    assert random_program(seed).func is program.func
    assert not program.compare(program.func.interpret(*program.inputs))


# 182: a stream whose results are single numbers has no loop for the programs of a GPU
# 26063: the only dot among the states of a stream is one number
@pytest.mark.parametrize("seed", [182, 26063, *range(4)])
def test_kernels_for_other_machines(seed: int) -> None:
    for_other_machines(random_program(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4, MANY // 5, 50))
def test_many_kernels_for_other_machines(first: int) -> None:
    for seed in range(first, first + 50):
        for_other_machines(random_program(seed))


def test_comparison_sees_small_errors() -> None:
    program = random_program(3)
    floats = [i for i, r in enumerate(program.func.results) if r.dtype.name == "f32"]
    values = [r.copy() for r in program.results]
    values[floats[0]] += np.float32(1e-2) * (1 + np.abs(values[floats[0]]))
    assert "differs" in program.compare(values)


Jump = Callable[[Builder, Node], Node]
TWO = np.float32(2)
JUMPS: dict[str, Jump] = {
    "cast to an integer": lambda b, x: b.cast(x, type=tensor("i32", 1)),
    "cast to bool": lambda b, x: b.cast(b.sub(x, TWO), type=tensor("bool", 1)),
    "floor": lambda b, x: b.floor(x),
    "round": lambda b, x: b.round(b.mul(x, np.float32(0.25))),
    "remainder": lambda b, x: b.rem(x, np.float32(1)),
    "comparison": lambda b, x: b.lt(x, TWO),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", JUMPS)
def test_inexact_values_are_clear_of_jumps(name: str, seed: int) -> None:
    """A value that rounds to 2, or next to it, has jumped by luck; 2 itself has not."""
    for number, rest, is_kept in ((8.6, 1, False), (0.0, 2, True)):
        grower = Grower(random.Random(seed), [1], ["f32"], 1)
        x = grower.give(param("x", tensor("f32", 1)), np.array([number], np.float32))
        made = JUMPS[name](grower.b, grower.b.add(grower.b.tanh(x), np.float32(rest)))
        assert (grower.keep(made) is not None) is is_kept


EXTREMES: dict[str, Jump] = {
    "elementwise": lambda b, x: b.max(x, b.neg(x)),
    "reduction": lambda b, x: b.reduce(
        b.reshape(x, type=tensor("f32", 32, 2)), kind="min", axes=(1,)
    ),
    "scan": lambda b, x: b.scan(x, kind="max", axis=0, reverse=False),
    "scatter": lambda b, x: b.scatter(
        x, b.const(np.arange(64)), b.neg(x), rule="a!, n, n -> a!", kind="min"
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_the_larger_of_two_zeros_has_any_sign(name: str) -> None:
    """So a number divided by it is either infinity, and no such program is kept."""
    grower = Grower(random.Random(0), [64], ["f32"], 64)
    x = grower.give(param("x", tensor("f32", 64)), np.zeros(64, np.float32))
    grower.special = True
    zero = EXTREMES[name](grower.b, x)
    assert grower.keep(zero) is not None
    assert grower.keep(grower.b.div(np.float32(1), zero)) is None


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_products_of_infinities(dtype: str) -> None:
    """A library may make nan of all bf16 sums beside an infinite factor."""
    x = param("x", tensor(dtype, 2, 3))
    for number, is_made in ((1.0, True), (np.inf, dtype != "bf16")):
        made: list[Node | None] = []
        for seed in range(5):
            grower = Grower(random.Random(seed), [2], [dtype], 99)
            grower.give(x, np.full((2, 3), number, DTYPES[dtype].numpy))
            made.append(grower.dot(x))
        assert any(m is not None for m in made) is is_made


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(QUICK))
def test_passes_alone(seed: int) -> None:
    through_every_pass(random_program(1000 + seed, small=True))


@pytest.mark.parametrize("seed", range(QUICK))
def test_stages(seed: int) -> None:
    through_every_stage(random_program(2000 + seed, small=True))


@pytest.mark.parametrize("seed", range(QUICK))
def test_native(seed: int) -> None:
    natively(random_program(3000 + seed, size=10))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_sweep_of_passes_and_stages(part: int) -> None:
    for seed in range(10_000 + part * MANY, 10_000 + (part + 1) * MANY, 3):
        through_every_pass(random_program(seed, small=True))
        through_every_stage(random_program(seed, small=True))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_native_sweep(part: int) -> None:
    for seed in range(50_000 + part * 200, 50_000 + (part + 1) * 200):
        natively(random_program(seed))


# ---- what they found

FOUND = {
    # partition kept what the forward pass reads of a value that is a gradient itself
    "a gradient that the forward pass reads transposed": """
func @main(%x: f32[4, 6]) -> (f32[4], f32[4, 4]) at tensor {
  %y = dot(%x, %x) {rule="i k, j k -> i j"} : f32[4, 4]
  %z = transpose(%y) {perm=[1, 0]} : f32[4, 4]
  %sum = reduce(%z) {axes=[1], kind="sum"} : f32[4]
  return %sum, %y
}
""",
    # a reshape that neither merges nor splits was taken for one that does
    "transpose before an unclean reshape": """
func @main(%x: f32[20, 8]) -> (f32[4, 40]) at tensor {
  %y = transpose(%x) {perm=[1, 0]} : f32[8, 20]
  %z = reshape(%y) : f32[4, 40]
  return %z
}
""",
    "dot of an unclean reshape": """
func @main(%x: f64[7, 10], %y: f64[5, 8, 8]) -> (f64[7, 32]) at tensor {
  %flat = reshape(%y) : f64[10, 32]
  %z = dot(%x, %flat) {rule="m a, a b -> m b"} : f64[7, 32]
  return %z
}
""",
    # the summed axis of the second operand was unknown to the first
    "dot with a lone axis of size 1": """
func @main(%x: f64[8, 1, 16], %y: f64[16, 1]) -> (f64[8, 1]) at tensor {
  %z = dot(%x, %y) {rule="a b c, c m -> a b"} : f64[8, 1]
  return %z
}
""",
    # torch's matmul has no such axis
    "16-bit dot with a lone axis": """
func @main(%x: bf16[8, 3, 16], %y: bf16[16, 5]) -> (bf16[8, 5]) at tensor {
  %z = dot(%x, %y) {rule="a b c, c m -> a m"} : bf16[8, 5]
  return %z
}
""",
    # positions that count down were divided as if they could not be negative
    "reverse of an unclean reshape": """
func @main(%x: u8[3, 3]) -> (u8[1, 9]) at tensor {
  %y = transpose(%x) {perm=[1, 0]} : u8[3, 3]
  %flat = reshape(%y) : u8[1, 9]
  %z = reverse(%flat) {axes=[0, 1]} : u8[1, 9]
  return %z
}
""",
    # the loop gave back its operand, whose place in the arena the next steps took
    "loop without iterations": """
func @main(%n: i64[], %x: f32[64], %y: f32[64]) -> (f32[192]) at tensor {
  %log = exp(%x) : f32[64]
  %while = while(%n, %log) : (i64[], f32[64]) {(%i: i64[], %p: f32[64])
    %test = lt(%i, -9:i64) : bool[]
    return %test
  } {(%i: i64[], %p: f32[64])
    %j = add(%i, 1:i64) : i64[]
    %q = add(%p, %p) : f32[64]
    return %j, %q
  }
  %item = item(%while) {index=1} : f32[64]
  %e = exp(%y) : f32[64]
  %sort = sort(%e, %y) {axis=0, descending=false, num_keys=1} : (f32[64], f32[64])
  %s = item(%sort) {index=0} : f32[64]
  %t = item(%sort) {index=1} : f32[64]
  %z = concat(%item, %s, %t) {axis=0} : f32[192]
  return %z
}
""",
    # a value of one iteration of the loop over rows was kept for after the loop
    "dear value in a loop over rows, needed again": """
func @main(%x: f32[8, 4]) -> (f32[8, 4], f32[8, 4]) at tensor {
  %e = exp(%x) : f32[8, 4]
  %total = reduce(%e) {axes=[0, 1], kind="sum"} : f32[]
  %wide = broadcast(%total) {axes=[]} : f32[8, 4]
  %y = sub(%e, %wide) : f32[8, 4]
  return %y, %e
}
""",
}


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_updates_of_16_bits_round_once(dtype: str) -> None:
    # rounded after each update, 2 ** -7 would be lost between 3 and -3
    text = f"""func @main(%x: {dtype}[4, 5], %i: i64[2], %u: {dtype}[2, 5]) -> ({dtype}[4, 5]) at tensor {{
  %z = scatter(%x, %i, %u) {{kind="add", rule="v! d, n, n d -> v! d"}} : {dtype}[4, 5]
  return %z
}}
"""  # noqa: E501
    func = parse(text)
    small = 2.0**-7 if dtype == "bf16" else 2.0**-10
    x = np.full((4, 5), small, func.params[0].dtype.numpy)
    updates = np.array([[3.0] * 5, [-3.0] * 5]).astype(x.dtype)
    given = [
        encode(x, func.params[0].dtype),
        np.array([2, 2]),
        encode(updates, func.params[2].dtype),
    ]
    (found,) = compile_func(func, "mlir", options={"cache": False}).run(given)
    np.testing.assert_array_equal(decode(found, func.results[0].dtype), x)


def agree(func: Func) -> None:
    inputs = random_inputs(func)
    value = func.interpret(*inputs)
    results = list(value) if isinstance(value, tuple) else [value]
    errors = [1e-5 * (1000 if r.dtype.bits == 16 else 1) for r in func.results]
    program = Program(func, inputs, results, errors)
    through_every_pass(program)
    through_every_stage(program)
    natively(program)


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    agree(parse(FOUND[name].strip() + "\n"))


@pytest.mark.parametrize("lanes", [1, 9, 17, 33, 65])
def test_bf16_of_any_width(lanes: int) -> None:
    # LLVM aborts on bf16 arithmetic of these widths
    agree(
        parse(
            f"""func @main(%x: bf16[{lanes}], %s: bf16[]) -> (bf16[{lanes}], bf16[]) at tensor {{
  %y = neg(%x) : bf16[{lanes}]
  %z = mul(%y, -1.703125:bf16) : bf16[{lanes}]
  %test = gt(%s, 0.0:bf16) : bool[]
  %t = select(%test, %s, 1.0:bf16) : bf16[]
  return %z, %t
}}
"""
        )
    )


@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("shape", ["", "1", "5", "67"])
def test_f64_to_16_bits_rounds_as_the_reference(target: str, shape: str) -> None:
    text = f"""func @main(%x: f64[{shape}]) -> ({target}[{shape}]) at tensor {{
  %y = cast(%x) : {target}[{shape}]
  return %y
}}
"""
    func = parse(text)
    tie = 1 + 2.0**-11  # between two values of f16
    picked = [tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, 1e300, np.nan, -np.inf, 65519.9]
    for start in range(len(picked)):
        x = np.resize(np.roll(picked, start), func.params[0].shape)
        (found,) = compile_func(func, "mlir", options={"cache": False}).run([x])
        got = decode(found, func.results[0].dtype)
        np.testing.assert_array_equal(got, func.interpret(x))


@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "i64", "u64"])
def test_shifts_out_of_range_and_integer_powers(dtype: str) -> None:
    n = 67
    text = f"""func @main(%x: {dtype}[{n}], %y: {dtype}[{n}]) -> ({dtype}[{n}], {dtype}[{n}], {dtype}[{n}]) at tensor {{
  %left = shl(%x, %y) : {dtype}[{n}]
  %right = shr(%x, %y) : {dtype}[{n}]
  %power = pow(%x, %y) : {dtype}[{n}]
  return %left, %right, %power
}}
"""  # noqa: E501
    func = parse(text)
    signed = dtype.startswith("i")
    kind = func.params[0].dtype.numpy
    x = np.resize(np.array([1, 2, 3, 5, 100] + [-1, -2, -100] * signed), n).astype(kind)
    y = np.resize(np.array([0, 1, 7, 31, 32, 63, 64, 3] + [-1, -2, -70] * signed), n).astype(kind)
    found = compile_func(func, "mlir", options={"cache": False}).run([x, y])
    for want, got in zip(func.interpret(x, y), found, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_stream_that_holds_one_state_twice() -> None:
    """Its second sum is its first: what follows in the block sits where it says."""
    natively(random_program(50_824))
