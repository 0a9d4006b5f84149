"""Schedules: their text, what they leave open, what a domain refuses, and what kernels follow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stack.cli import main
from stack.demos.gemm_ladder import LADDER, kernel_of, lowered, matmul
from stack.errors import UsageError
from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.ir.node import walk
from stack.ir.refusal import KernelRefused
from stack.passes.policies.lowerings import policy_of
from stack.passes.schedule import WriteSchedules
from stack.rewrite import Pipeline
from stack.schedule import (
    Axis,
    AxisSplit,
    Domain,
    Need,
    Schedule,
    named_schedules,
    schedules_of,
    why_illegal,
)
from stack.target import as_gpu, load

TEXTS = [
    "m=128@grid n=256@grid k=64@serial warps=8 stages=3 persistent",
    "m=128+64@grid n=256+128@grid k=64@serial warps=8 stages=3",
    "m=128@grid m=32@warp m=8@unroll n=4@lane k=16@serial stages=2",
    "n=8@vector warps=4",
    "k=32",
    "library",
    "unfused",
]
ATTENTION = """
func @main(%q: bf16[2, S, 64], %k: bf16[2, S, 64], %v: bf16[2, S, 64]) -> (bf16[2, S, 64])
    at tensor {
  %x = dot(%q, %k) {rule="b m d, b n d -> b m n"} : bf16[2, S, S]
  %m = reduce(%x) {axes=[2], kind="max"} : bf16[2, S]
  %mb = broadcast(%m) {axes=[0, 1]} : bf16[2, S, S]
  %c = sub(%x, %mb) : bf16[2, S, S]
  %e = exp(%c) : bf16[2, S, S]
  %l = reduce(%e) {axes=[2], kind="sum"} : bf16[2, S]
  %lb = broadcast(%l) {axes=[0, 1]} : bf16[2, S, S]
  %p = div(%e, %lb) : bf16[2, S, S]
  %o = dot(%p, %v) {rule="b m n, b n d -> b m d"} : bf16[2, S, 64]
  return %o
}
""".replace("S", "512")


PLAIN = """
func @main(%x: f32[256, 128], %w: f32[64, 128], %c: f32[256, 64]) -> (f32[256, 64]) at tensor {
  %y = dot(%x, %w) {rule="m k, n k -> m n"} : f32[256, 64]
  %z = add(%y, %c) : f32[256, 64]
  return %z
}
"""


def product(m: int = 4096, n: int = 1024, k: int = 512, dtype: str = "bf16") -> Func:
    x, w, c = (param(p, tensor(dtype, *s)) for p, s in zip("xwc", ((m, k), (n, k), (m, n))))
    b = Builder()
    z = b.add(b.dot(x, w, rule="m k, n k -> m n"), c)
    return Pipeline("fuse").run(b.func("main", [x, w, c], [z])).func


def stream() -> Func:
    func = Pipeline("canonicalize,stream{min_axis=2,loops=blocks},fuse").run(parse(ATTENTION)).func
    assert [n.op for n in func.nodes] == ["stream"]
    return func


def name_of(func: Func) -> str:
    (node,) = func.nodes
    return func.body.names[node]


def given(func: Func, text: str, passes: str = "schedule") -> Func:
    made = Pipeline(passes).run(func, schedules={name_of(func): text}).func
    verify(made)
    assert parse(str(made)) is made
    return made


def kernel(func: Func, text: str) -> Node:
    (node,) = given(func, text, "schedule,blocks").nodes
    assert node.op == "kernel"
    return node


def shapes(node: Node) -> list[tuple[object, ...]]:
    """Operands of the products of a kernel."""
    dots = [n for _, n in walk(node.blocks[0]) if n.op == "dot"]
    return [tuple(d.shape) for dot in dots for d in dot.args]


# ---- text


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_reads_back(text: str) -> None:
    assert str(Schedule.parse(text)) == text
    assert Schedule.parse(text.replace(" ", ", ")) == Schedule.parse(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "''"),
        ("128x256", "128x256"),
        ("m=", "m="),
        ("m=12 8", "8"),
        ("m=64@wave", "'wave', which is none of grid, warp"),
        ("warps=4@grid", "warps=4@grid"),
        ("stages=2 stages=3", "stages=3"),
        ("warps=0", "warps=0"),
        ("library m=2", "library"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, word: str) -> None:
    with pytest.raises(UsageError, match="schedule") as error:
        Schedule.parse(text)
    assert word in str(error.value)


def test_what_is_left_open_is_filled_in() -> None:
    usual = Schedule.parse("m=128@grid n=256@grid k=64@serial warps=8 stages=3")
    assert str(Schedule.parse("k=32").filled(usual)) == str(usual).replace("k=64", "k=32")
    turned = Schedule.parse("n=64 m=32").filled(usual)
    assert str(turned) == "n=64@grid m=32@grid k=64@serial warps=8 stages=3"
    assert Schedule.parse("q=3").filled(usual).of("q") == (AxisSplit("q", 3),)


def test_schedules_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("%y: m=64 n=32  # small\n\nz: library\n")
    want = {"y": "m=64 n=32", "z": "library"}
    assert named_schedules([str(path)]) == want
    assert named_schedules(["y: m=64 n=32; z: library"]) == want
    with pytest.raises(UsageError, match="NAME"):
        named_schedules(["m=64"])
    path.write_text("\ufeffy: m=64\n")
    assert named_schedules([str(path)]) == {"y": "m=64"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "mine cannot be read as schedules: 'utf-8' codec"),
        (b"y:  # nothing", "schedule 'y:': cannot read ''; write blocks"),
        (b"y: m=" + b"9" * 5000, "cannot read 'm=999"),
        (b"x" * 100000, "schedule 'x{80}': write"),
    ],
)
def test_a_file_that_is_no_list_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        named_schedules([str(path)])


def test_a_long_list_without_a_name_is_no_file() -> None:
    with pytest.raises(UsageError, match="a list of steps as 'NAME: split"):
        named_schedules(["; ".join(["split r 4"] * 1000)])


def test_a_list_for_a_pattern_is_for_groups_with_its_axes() -> None:
    text = """func @f(%x: f32[4, 64], %y: f32[64]) -> (f32[4], f32[64]) at tensor {
      %s = reduce(%x) {axes=[1], kind="sum"} : f32[4]
      %e = exp(%y) : f32[64]
      return %s, %e
    }
    """
    run = Pipeline("schedule{loops=cpu}").run
    given = {"*": "split r 8; fission r.0 r.1 into=q; vectorize q"}
    with pytest.raises(UsageError, match="%s: step 2"):
        run(parse(text), target=load("avx2"), schedules=given)
    made = run(parse(text), target=load("avx2"), schedules={"*": "split r 8; bind i cores"}).func
    assert {made.body.names[n]: schedules_of(n) for n in made.nodes} == {
        "s": ("split r 8; bind i cores",),
        "e": (),
    }


def test_steps_that_make_no_kernel_are_an_error() -> None:
    """The compiler of a backend may have no code for what steps make."""
    func = product()
    steps = (
        "split k 64; split i 64; split j 64; vectorize k.1; vectorize j.1; vectorize i.1; tensorize"
    )
    given = {name_of(func): f"{steps}; bind i.0 grid; bind j.0 grid; launch 4"}
    with pytest.raises(UsageError, match="its steps make no kernel: no tile product of"):
        Pipeline("schedule,blocks{dots=[i32]}").run(func, schedules=given)


# ---- legality

DOMAIN = Domain(
    (
        Axis("m", 512, "parallel", ("grid", "warp", "lane")),
        Axis("n", 96, "parallel", ("grid",), unit=16, most=256),
        Axis("k", 64, "reduction", ("grid", "serial")),
        Axis("t", 64, "stream", ("serial",), "a result has it"),
    ),
    options=("warps",),
    words=("library",),
    ordered=True,
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m=64@grid n=32@grid k=16@serial warps=4", ""),
        ("m=64@grid m=16@warp m=4@lane", ""),
        ("k=16@grid", ""),
        ("library", ""),
        ("unfused", "'unfused' cannot replace this kernel; possible: library"),
        ("q=4@grid", "no axis 'q'; its domain has m \\(512, parallel\\)"),
        ("m=48@grid", "axis m: a block of 48 is no power of two"),
        ("m=0@grid", "axis m: a block of 0 elements"),
        ("n=8@grid", "axis n: a block of 8, the least is 16"),
        ("n=512@grid", "axis n: a block of 512, the most is 256"),
        ("n=16@lane", "axis n: 16@lane: a parallel axis of this kernel is bound to grid"),
        ("m=64@grid m=128@warp", "axis m: a block of 128 does not divide the one around it, 64"),
        ("m=64@warp m=32@grid", "axis m: bound to warp, grid; the order is grid, warp, lane"),
        ("m=64@grid m=32@grid", "axis m: bound to grid, grid"),
        ("k=64+32@serial", "axis k: 64\\+32@serial: only blocks of programs have a tail"),
        ("t=16@grid", "axis t: 16@grid would divide it among programs, and a result has it"),
        ("n=16@grid m=16@grid", "programs along n, m; the order of this kernel is m, n"),
        ("m=64@grid warps=6", "warps=6 is no power of two"),
        ("m=64@grid stages=2", "stages: this kernel has no such choice"),
        ("m=64@grid persistent", "persistent: this kernel has no such choice"),
    ],
)
def test_a_reason_names_axis_rule_and_number(text: str, why: str) -> None:
    found = why_illegal(Schedule.parse(text), DOMAIN)
    assert bool(found) == bool(why)
    assert not why or re.search(why, found)


def test_blocks_need_not_be_powers_of_two_everywhere() -> None:
    domain = Domain((Axis("m", 512, "parallel", ("grid",), unit=12, is_free=True),))
    assert why_illegal(Schedule.parse("m=24@grid"), domain) == ""
    assert "32 is no multiple of 12" in why_illegal(Schedule.parse("m=32@grid"), domain)


def test_programs_of_one_grid_have_blocks_of_one_size() -> None:
    """On `cuda`, where the model would cut the rows that whole waves leave on `triton`."""
    b = Builder()
    x, w = param("x", tensor("bf16", 16384, 28672)), param("w", tensor("bf16", 28672, 8192))
    func = (
        Pipeline("fuse")
        .run(b.func("main", [x, w], [b.max(b.dot(x, w, rule="m k, k n -> m n"), 0.0)]))
        .func
    )
    (usual,) = Pipeline("schedule").run(func).func.nodes
    (held,) = Pipeline("schedule{loops=warps}").run(func).func.nodes
    assert Schedule.parse(schedules_of(usual)[0]).tail("m")
    assert not Schedule.parse(schedules_of(held)[0]).tail("m")
    with pytest.raises(UsageError, match=r"axis m: 128\+64@grid: .* one size, 128"):
        given(func, "m=128+64 n=128", "schedule{loops=warps}")
    with pytest.raises(KernelRefused, match="blocks of two sizes"):
        Pipeline("schedule,blocks,distribute_gpu").run(func)


def test_what_a_program_does_not_have() -> None:
    needs = [Need("threads", 64, 1024), Need("bytes of shared memory", 300, 256)]
    found = why_illegal(Schedule.parse("m=16@grid"), DOMAIN, needs)
    assert found == "it takes 300 bytes of shared memory, and a program has 256"


@pytest.mark.parametrize(
    ("make", "text", "why"),
    [
        (product, "q=3", "no axis 'q'; its domain has m \\(4096, parallel\\)"),
        (product, "m=96", "axis m: a block of 96 is no power of two"),
        (product, "m=8", "axis m: a block of 8, the least is 16"),
        (product, "m=128 n=256 k=128 stages=6", "589824 bytes of shared memory.* has 230400"),
        (product, "m=512 n=512", "262144 registers for sums, and a program has 32768"),
        (product, "warps=64", "2048 threads, and a program has 1024"),
        (
            product,
            "k=64@grid",
            "axis k: 64@grid would divide it among programs, and a group has all 512 elements",
        ),
        (product, "library", "'library' cannot replace"),
        (stream, "n=64", "no axis 'n'; its domain has b"),
        (stream, "e=32", "axis e: .*bound to nothing"),
        (stream, "m=128 k=512 stages=5", "bytes of shared memory"),
        (stream, "m=2048 k=16", "registers for sums and scores"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(make, text: str, why: str) -> None:  # type: ignore[no-untyped-def]
    func = make()
    with pytest.raises(UsageError, match=why) as error:
        given(func, text)
    assert f"%{name_of(func)}" in str(error.value)
    held = parse(str(func).replace('kind="gemm"', f'kind="gemm", schedule="{text}"'))
    if held is not func and text != "library":
        with pytest.raises(UsageError, match=why):
            Pipeline("blocks").run(held)


def test_a_smaller_machine_refuses_what_a_larger_takes() -> None:
    text, func = "m=128 n=128 k=64 stages=6", product()
    made = Pipeline("schedule").run(func, target=load("sm_90"), schedules={"*": text}).func
    assert schedules_of(made.nodes[0]) == ("m=128@grid n=128@grid k=64@serial warps=4 stages=6",)
    with pytest.raises(UsageError, match="196608 bytes of shared memory"):
        Pipeline("schedule").run(func, target=load("sm_80"), schedules={name_of(func): text})


# ---- what follows it


def test_a_product_follows_its_schedule() -> None:
    usual = kernel(product(), "warps=4")
    made = kernel(product(), "m=64 n=32 k=16 warps=2 stages=5")
    assert set(shapes(made)) == {(64, 16), (32, 16)} and shapes(usual) != shapes(made)
    assert (made.attrs["warps"], made.attrs["stages"]) == (2, 5)


def test_programs_run_along_the_axis_that_stands_last() -> None:
    grids = [
        [n.blocks[0].params[0].attrs["name"][:3] for _, n in walk(made.blocks[0])
         if n.op == "loop" and n.attrs["kind"] == "grid"]
        for made in (kernel(product(), t) for t in ("m=64 n=32", "n=32 m=64"))
    ]  # fmt: skip
    assert grids == [["i.0", "j.0"], ["j.0", "i.0"]]


def test_a_stream_follows_its_schedule() -> None:
    made = kernel(stream(), "m=32 k=16 stages=2")
    assert {s[0] for s in shapes(made)[:1]} == {32} and (16, 64) in shapes(made)
    assert made.attrs["stages"] == 2


@pytest.mark.parametrize("make", [product, stream])
def test_without_one_kernels_are_what_the_policy_puts_first(make) -> None:  # type: ignore[no-untyped-def]
    func = make()
    written = Pipeline("schedule").run(func).func
    (group,) = written.nodes
    policy = policy_of(func.nodes[0], as_gpu(None))
    assert policy is not None
    assert schedules_of(group) == (str(policy.candidates()[0][0]),)
    assert Pipeline("blocks").run(written).func is Pipeline("blocks").run(func).func


@pytest.mark.parametrize("make", [product, stream])
def test_every_candidate_is_legal_and_complete(make) -> None:  # type: ignore[no-untyped-def]
    policy = policy_of(make().nodes[0], as_gpu(None))
    assert policy is not None
    found = [s for s, _ in policy.candidates()]
    assert len(found) > 3
    for schedule in found:
        assert policy.why_illegal(schedule) == ""
        assert policy.follow(Schedule.parse(str(schedule))) == schedule


@pytest.mark.parametrize(("count", "warps"), [(2, 2), (13, 2), (14, 4), (25, 4)])
def test_a_thread_has_registers_for_its_elements_of_all_arrays(count: int, warps: int) -> None:
    b = Builder()
    arrays = [param(f"x{i}", tensor("f32", 4096, 1024)) for i in range(count)]
    total = arrays[0]
    for x in arrays[1:]:
        total = b.add(total, x)
    func = Pipeline("fuse").run(Func("f", b.block(arrays, [total]), "tensor")).func
    policy = policy_of(func.nodes[0], as_gpu(None))
    assert policy is not None
    (found, _), *_ = policy.candidates()
    assert (found.block("j"), found.warps) == (1024, warps)


def test_the_model_tells_its_parts() -> None:
    (record,) = Pipeline("schedule").run(product(), verbose=True).records
    (note,) = record.notes
    assert note.count(" us (") == len(WriteSchedules(most=99).best(record.before.nodes[0], None))
    assert "tensor" in note and "memory" in note and "cache" in note


def test_a_pattern_is_for_what_has_its_axes() -> None:
    made = Pipeline("schedule").run(stream(), schedules={"*": "n=32"}).func
    assert made is Pipeline("schedule").run(stream()).func


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no group to schedule is called %w; there are: %"):
        Pipeline("schedule").run(product(), schedules={"w": "m=64"})
    with pytest.raises(UsageError, match="pass 'schedule'"):
        Pipeline("blocks").run(product(), schedules={"w": "m=64"})


# ---- other loops


@pytest.mark.parametrize(
    ("text", "shape"), [("m=2 n=16", "f32<2x16>"), ("n=32", "x32>"), ("m=5 n=16", "f32<5x16>")]
)
def test_a_product_of_a_cpu_follows_its_schedule(text: str, shape: str) -> None:
    func, target = product(dtype="f32"), load("avx512")
    given = {name_of(func): text}
    made = Pipeline("schedule{loops=cpu},tile").run(func, target=target, schedules=given).func
    verify(made)
    assert parse(str(made)) is made
    (dot,) = (n for _, n in walk(made.body) if n.op == "dot")
    assert shape in str(dot.type)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m=64 n=64", "256 vector registers for sums, and a program has 32"),
        ("n=24", "axis n: a block of 24 is no power of two"),
        ("n=2048", "axis n: a block of 2048, the most is 1024"),
        ("k=64", "axis k: .*bound to nothing"),
        ("m=4@grid", "a parallel axis of this kernel is bound to unroll"),
        ("warps=4", "warps: this kernel has no such choice"),
        ("q=1", "no axis 'q'"),
    ],
)
def test_a_schedule_that_does_not_fit_a_cpu(text: str, why: str) -> None:
    func = product(dtype="f32")
    with pytest.raises(UsageError, match=why):
        Pipeline("schedule{loops=cpu}").run(
            func, target=load("avx512"), schedules={name_of(func): text}
        )


def test_what_is_a_librarys_has_no_schedule() -> None:
    func = product(k=511)
    with pytest.raises(UsageError, match="has no kernel to schedule: libraries have instructions"):
        Pipeline("schedule{loops=cpu}").run(
            func, target=load("avx512"), schedules={name_of(func): "m=4"}
        )
    with pytest.raises(UsageError, match="no loops 'gpu' to schedule; there are: blocks, cpu"):
        Pipeline("schedule{loops=gpu}").run(func)


def threaded(text: str, dtype: str = "bf16") -> Node:
    func = product(dtype=dtype)
    passes = "schedule{loops=warps},blocks,distribute_gpu"
    given = {name_of(func): text}
    (made,) = Pipeline(passes).run(func, target=load("sm_80"), schedules=given).func.nodes
    assert made.attrs["level"] == "loop"
    return made


def memories(node: Node) -> set[tuple[object, ...]]:
    return {tuple(n.shape) for _, n in walk(node.blocks[0]) if n.op == "alloc"}


def test_a_product_of_warps_follows_its_schedule() -> None:
    pad = 8
    assert {(2 * 64, 32 + pad), (2 * 32, 64 + pad)} <= memories(threaded("m=64 n=64 k=32 stages=2"))
    assert (64, 32 + pad) in memories(threaded("m=64 n=64 k=32 stages=1"))
    assert {(4 * 32, 16 + pad)} <= memories(threaded("m=32 n=128 k=16 stages=4"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m=48 n=32", "axis m: a block of 48 is no power of two"),
        ("m=128 n=128 stages=40", "bytes of shared memory, and a program has"),
        ("m=256 n=256", "65536 registers for sums, and a program has 32768"),
        ("m=32 m=2@lane n=16", "axis m: m=2@lane, but a lane has 1 element"),
        ("m=16 m=1@lane n=16", "axis m: a block of 16 is no multiple of 32 lanes"),
        ("m=128 m=1@lane n=128 n=1@lane", "n=1@lane: lanes have one sum each, along axis m only"),
        ("m=128 m=4@unroll n=128 n=2@unroll", "it takes 2048 threads, and a program has 1024"),
        (
            "m=128 m=8@unroll n=128 n=8@unroll warps=4",
            "warps=4: 128 x 128 sums need 8 warps, 64 a thread",
        ),
        ("m=8@unroll n=128", "axis m: a block of 8, the least is 16"),
    ],
)
def test_a_schedule_that_does_not_fit_warps(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        threaded(text)


def test_what_single_threads_do_is_not_for_triton() -> None:
    func = product()
    with pytest.raises(UsageError, match="1@lane: a parallel axis of this kernel is bound to grid"):
        Pipeline("schedule").run(func, schedules={name_of(func): "m=32 m=1@lane n=32"})


def test_lines_have_the_schedule_of_blocks() -> None:
    b, x, w = Builder(), param("x", tensor("f32", 1, 512)), param("w", tensor("f32", 1024, 512))
    dot = b.dot(x, w, rule="m k, n k -> m n")
    func = Pipeline("fuse").run(b.func("main", [x, w], [dot])).func
    passes, name = "schedule{loops=warps},blocks", name_of(func)
    (made,) = Pipeline(passes).run(func, schedules={name: "n=16 k=64"}).func.nodes
    loads = {tuple(n.shape) for _, n in walk(made.blocks[0]) if n.op == "load"}
    assert (16, 64) in loads
    with pytest.raises(UsageError, match="axis k: a block of 100 is no power of two"):
        Pipeline(passes).run(func, schedules={name: "k=100"})


def test_how_many_sums_a_thread_has() -> None:
    """A layout has one register for each sum of a thread, in the axes of its tile."""
    found = {r.name: sums_of(kernel_of(lowered(r, matmul(256, 256, 512)))) for r in LADDER[:4]}
    assert found["naive"] == found["coalesced"] == found["shared"] == (32, 32, 1, 1)
    assert found["register"] == (8, 32, 8, 8)


def sums_of(kernel: Node) -> tuple[object, ...]:
    """The warps, lanes and registers that the sums of a product lie in."""
    return next(tuple(n.shape) for _, n in walk(kernel.blocks[0]) if n.op == "fma")


# ---- rows


def rows(shape: tuple[int, int], axis: int) -> Func:
    x = param("x", tensor("f32", *shape))
    b = Builder()
    m = b.reduce(x, kind="max", axes=(axis,))
    y = b.sub(x, b.broadcast(m, axes=(0,), type=x.type)) if axis else b.exp(m)
    return Pipeline("fuse").run(b.func("main", [x], [y])).func


@pytest.mark.parametrize(
    ("shape", "axis", "text"),
    [
        ((64, 100), 1, "i=4 warps=2"),
        ((64, 100), 1, "r=32@serial warps=1"),
        ((64, 100), 1, "r=16@serial stages=2"),
        ((8, 40000), 1, "r=1024 warps=8"),
        ((300, 70), 0, "j=16"),
        ((300, 70), 0, "j=32 r=8 warps=2"),
        ((8, 70), 0, "r=4@serial j=64"),
    ],
)
def test_rows_follow_their_schedule(shape: tuple[int, int], axis: int, text: str) -> None:
    func = rows(shape, axis)
    usual, made = Pipeline("blocks").run(func).func, given(func, text, "schedule,blocks")
    assert made is not usual
    asked = Schedule.parse(text)
    (node,) = made.nodes
    assert asked.warps in (0, node.attrs["warps"])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(made.interpret(x), func.interpret(x))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("r=64@lane", "axis r: a block in lanes has all 128 elements"),
        ("r=16@grid", "axis r: 16@grid would divide it among programs, .* all 100 elements"),
        ("stages=2", "stages=2: there is no serial loop with loads to prefetch"),
        ("i=1024", "131072 registers for a tile, and a program has 65536"),
        ("j=4", "no axis 'j'"),
    ],
)
def test_a_schedule_that_does_not_fit_rows(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        given(rows((2048, 100), 1), text)


def test_a_schedule_of_rows_is_written() -> None:
    func = Pipeline("schedule").run(rows((64, 100), 1)).func
    assert schedules_of(func.nodes[0]) == ("i=8@grid r=128@lane warps=1",)


WALKED = """
func @main(%x: f32[3, 300]) -> (f32[3, 300]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[3]
  %mb = broadcast(%m) {axes=[0]} : f32[3, 300]
  %c = sub(%x, %mb) : f32[3, 300]
  %e = exp(%c) : f32[3, 300]
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[3]
  %lb = broadcast(%l) {axes=[0]} : f32[3, 300]
  %p = div(%e, %lb) : f32[3, 300]
  return %p
}
"""


def test_a_stream_without_a_product_follows_its_schedule() -> None:
    passes = "canonicalize,stream{min_axis=2,loops=blocks},fuse"
    func = Pipeline(passes).run(parse(WALKED)).func
    made = given(func, "k=64 warps=2", "schedule,blocks")
    (node,) = made.nodes
    assert node.attrs["warps"] == 2
    assert "f32<64>" in str(made) and "< 5: i32" in str(made)
    x = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32)
    np.testing.assert_allclose(made.interpret(x), func.interpret(x), rtol=1e-5)
    with pytest.raises(UsageError, match="64@grid would divide it among programs, and a result"):
        given(func, "k=64@grid")


def test_a_stream_of_panels_follows_its_schedule() -> None:
    small = parse(ATTENTION.replace("512", "96"))
    func = Pipeline("canonicalize,stream{min_axis=2,loops=blocks}").run(small).func
    cpu, name = load("avx2"), name_of(func)
    draw = np.random.default_rng(0).standard_normal
    arrays = [round_bf16(draw(p.tensor.shape, dtype=np.float32)) for p in func.params]
    expected = func.interpret(*arrays)
    for text, shown in (("k=64", "f32[64, 16] in local"), ("m=8 k=48", "f32[48, 8] in local")):
        made = Pipeline("schedule{loops=cpu},tile").run(func, target=cpu, schedules={name: text})
        assert shown in str(made.func)
    np.testing.assert_allclose(made.func.interpret(*arrays), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m=24", "axis m: a block of 24 is no power of two"),
        ("m=64", "axis m: a block of 64, the most is 32"),
        ("k=64@grid", "axis k: 64@grid would divide it among programs"),
        ("warps=4", "warps: this kernel has no such choice"),
    ],
)
def test_a_schedule_that_does_not_fit_panels(text: str, why: str) -> None:
    func = stream()
    with pytest.raises(UsageError, match=why):
        Pipeline("schedule{loops=cpu}").run(
            func, target=load("avx2"), schedules={name_of(func): text}
        )


# ---- the command line


def test_by_hand_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    func = product()
    path, mine = tmp_path / "f.stack", tmp_path / "mine"
    path.write_text(str(func))
    mine.write_text(f"{name_of(func)}: m=64 n=32 k=16\n")
    argv = ["opt", str(path), "--schedule", str(mine)]
    assert main(argv) == 0
    assert 'schedule="m=64@grid n=32@grid k=16@serial warps=4 stages=3"' in capsys.readouterr().out
    assert main([*argv, "--pass-pipeline=schedule,blocks"]) == 0
    assert "f32<64x32>" in capsys.readouterr().out
    assert main(["opt", str(path), "--schedule", f"{name_of(func)}: q=3"]) == 2
    assert "no axis 'q'; its domain has m (4096, parallel)" in capsys.readouterr().err
    assert main([*argv, "--pass-pipeline=blocks"]) == 2
    assert "schedules are for pass 'schedule'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "target", "text", "shown"),
    [
        ("triton", "sm_90", "m=64 n=32 k=16", "f32<64x32>"),
        ("cuda", "sm_80", "m=64 n=32 stages=2", "f32<64x32>"),
        ("mlir", "avx2", "m=2 n=16", "f32<2x16>"),
    ],
)
def test_a_dump_shows_the_schedule_as_a_stage(
    backend: str,
    target: str,
    text: str,
    shown: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "f.stack"
    path.write_text(PLAIN)
    argv = ["dump", str(path), "--backend", backend, "--target", target]
    assert main([*argv, "--schedule", f"z: {text}", "--to", "scheduled"]) == 0
    out = capsys.readouterr().out
    assert f'schedule="{Schedule.parse(text).splits[0]}@' in out
    assert main([*argv, "--schedule", f"z: {text}", "--to", "tiled"]) == 0
    assert shown in capsys.readouterr().out


def test_explain_tells_what_was_considered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "f.stack", str(tmp_path / "r")
    path.write_text(re.sub(r"(%[yz] = .*)", r'\1 from "f.py:7"', PLAIN))
    argv = ["dump", str(path), "--backend", "triton", "--target", "sm_80", "-o", run]
    assert main([*argv, "--to", "tiled"]) == 0
    capsys.readouterr()
    assert main(["explain", run, "f.py:7"]) == 0
    out = capsys.readouterr().out
    assert "the model expects m=" in out and "(108 processors" in out
    assert out.count("us (tensor") + out.count("us (memory") + out.count("us (cache") > 3
