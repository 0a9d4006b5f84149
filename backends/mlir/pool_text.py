"""The pool's code as MLIR text: how threads take chunks of a job, spin, sleep and are woken."""

from __future__ import annotations

from . import team_text, threads

# About 150 us of CPU clock. That is longer than the gap between two calls of a program (25 to 50 us
# of Python) and than most kernels' last chunks, and shorter than OpenMP's threads spin.
SPIN_TICKS = 400_000

# 8-byte slots of the shared state. Each group has its own cache lines, because threads write the
# groups at different times.
SLOTS = {
    # generation of the job (32 bits), and end (16) and start (16) of the units nobody has taken
    "ticket": 0,
    "pending": 16,  # i32: unfinished units
    "waiting": 17,  # i32: the caller sleeps on `pending`
    "function": 32,
    "table": 33,
    "count": 34,
    "unit": 35,  # iterations per unit
    "team": 36,  # threads that share the job, including the caller
    "open": 37,  # of these, the caller and workers of this pool; others join by region
    "sleepers": 48,  # i32: workers that sleep on the generation, or are about to
    "busy": 64,  # i32: a job is in progress
    "started": 65,  # workers that were created
    "arrived": 66,  # workers that have started running
    "limit": 67,  # maximum number of threads
    "ask": 68,  # address of a function that returns a lower limit, or 0
    **team_text.SLOTS,
}
SIZE = 96
# what several functions use
CONSTANTS = {
    "zero": "0 : i64",
    "one": "1 : i64",
    "two": "2 : i64",
    "none": "0 : i32",
    "one32": "1 : i32",
    "mask": "65535 : i64",
    "sixteen": "16 : i64",
    "word": "32 : i64",
    "wait": "128 : i64",  # operations of futex
    "wake": "129 : i64",
    "front": "false",
}

# A ticket is replaced as a whole, by compare-and-exchange. If that succeeds, the job whose fields
# were read is still in progress: with a unit left, no other job can have replaced it.
_TEXT = """\
llvm.mlir.global internal @state(dense<0> : tensor<{size}xi64>) {{alignment = 128 : i64}}
  : !llvm.array<{size} x i64>
llvm.func @syscall(i64, i64, i64, i64, i64, i64, i64) -> i64
llvm.func @pthread_create(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @pthread_detach(i64) -> i32
llvm.func @pthread_sigmask(i32, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @pthread_self() -> i64
llvm.func @pthread_getcpuclockid(i64, !llvm.ptr) -> i32
llvm.func @clock_gettime(i32, !llvm.ptr) -> i32

llvm.func @stack_pool_state(%table: !llvm.ptr) {{
  %state = llvm.mlir.addressof @state : !llvm.ptr
  llvm.store %state, %table : !llvm.ptr, !llvm.ptr
  llvm.return
}}

llvm.func internal @futex(%word: !llvm.ptr, %op: i64, %value: i64)
    attributes {{passthrough = ["noinline"]}} {{
  %number = arith.constant 202 : i64
  %zero = arith.constant 0 : i64
  %at = llvm.ptrtoint %word : !llvm.ptr to i64
  %done = llvm.call @syscall(%number, %at, %op, %value, %zero, %zero, %zero)
    : (i64, i64, i64, i64, i64, i64, i64) -> i64
  llvm.return
}}

// Takes chunks of the job until none is left: from the end if `back`, else from the start. So
// threads find their part of the memory in their own cache in the next kernel. A chunk is half of
// an equal share of the rest: chunks half as large lost time to overhead, and gained none on a
// busy machine.
llvm.func internal @take(%back: i1) attributes {{passthrough = ["noinline"]}} {{
  {slots}
  llvm.br ^look(%none : i32)
^look(%done: i32):
  %ticket = llvm.load %ticket_at atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %start = arith.andi %ticket, %mask : i64
  %high = arith.shrui %ticket, %sixteen : i64
  %end = arith.andi %high, %mask : i64
  %left = arith.subi %end, %start : i64
  %open = arith.cmpi ne, %end, %start : i64
  llvm.cond_br %open, ^claim, ^finish
^claim:
  %function_i = llvm.load %function_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %table_i = llvm.load %table_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %count = llvm.load %count_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %unit = llvm.load %unit_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %team = llvm.load %team_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %parts = arith.muli %team, %two : i64
  %share = arith.divui %left, %parts : i64
  %some = arith.maxui %share, %one : i64
  %shifted = arith.shli %some, %sixteen : i64
  %less = arith.subi %ticket, %shifted : i64
  %more = arith.addi %ticket, %some : i64
  %after = arith.select %back, %less, %more : i64
  %pair = llvm.cmpxchg %ticket_at, %ticket, %after acq_rel monotonic {{alignment = 8 : i64}}
    : !llvm.ptr, i64
  %taken = llvm.extractvalue %pair[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %taken, ^run, ^look(%done : i32)
^run:
  %function = llvm.inttoptr %function_i : i64 to !llvm.ptr
  %table = llvm.inttoptr %table_i : i64 to !llvm.ptr
  %behind = arith.subi %end, %some : i64
  %first = arith.select %back, %behind, %start : i64
  %lo = arith.muli %first, %unit : i64
  %size = arith.muli %some, %unit : i64
  %reach = arith.addi %lo, %size : i64
  %hi = arith.minui %reach, %count : i64
  llvm.call %function(%table, %lo, %hi) : !llvm.ptr, (!llvm.ptr, i64, i64) -> ()
  %did = arith.trunci %some : i64 to i32
  %sum = arith.addi %done, %did : i32
  llvm.br ^look(%sum : i32)
^finish:
  %useful = arith.cmpi ne, %done, %none : i32
  llvm.cond_br %useful, ^report, ^out
^report:
  %before = llvm.atomicrmw sub %pending_at, %done seq_cst : !llvm.ptr, i32
  %last = arith.cmpi eq, %before, %done : i32
  %asleep = llvm.load %waiting_at atomic seq_cst {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %sleeps = arith.cmpi ne, %asleep, %none : i32
  %both = arith.andi %last, %sleeps : i1
  llvm.cond_br %both, ^rouse, ^out
^rouse:
  llvm.call @futex(%pending_at, %wake, %one) : (!llvm.ptr, i64, i64) -> ()
  llvm.br ^out
^out:
  llvm.return
}}

llvm.func internal @worker(%unused: !llvm.ptr) -> !llvm.ptr {{
  {slots}
  %ticks = arith.constant {ticks} : i64
  // Signals are left to Python's threads, except those that this thread causes itself.
  %signals = arith.constant {signals} : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %set = llvm.alloca %sixteen x i64 : (i64) -> !llvm.ptr
  llvm.store %signals, %set : i64, !llvm.ptr
  %masked = llvm.call @pthread_sigmask(%none, %set, %null)
    : (i32, !llvm.ptr, !llvm.ptr) -> i32
  %me = llvm.atomicrmw add %arrived_at, %one acq_rel : !llvm.ptr, i64
  %rank = arith.addi %me, %one : i64
  %odd = arith.andi %rank, %one : i64
  %back = arith.cmpi ne, %odd, %zero : i64
  llvm.br ^idle
^idle:
  %since = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.br ^look
^look:
  %ticket = llvm.load %ticket_at atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %start = arith.andi %ticket, %mask : i64
  %high = arith.shrui %ticket, %sixteen : i64
  %end = arith.andi %high, %mask : i64
  %welcome = llvm.load %open_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %open = arith.cmpi ne, %end, %start : i64
  %member = arith.cmpi ult, %rank, %welcome : i64
  %mine = arith.andi %open, %member : i1
  llvm.cond_br %mine, ^work, ^rest
^work:
  llvm.call @take(%back) : (i1) -> ()
  llvm.br ^idle
^rest:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %spent = arith.subi %now, %since : i64
  %enough = arith.cmpi ugt, %spent, %ticks : i64
  llvm.cond_br %enough, ^sleep, ^look
^sleep:
  // The system compares the generation again, so that a job published since then is not missed.
  %generation = arith.shrui %ticket, %word : i64
  %a = llvm.atomicrmw add %sleepers_at, %one32 seq_cst : !llvm.ptr, i32
  llvm.call @futex(%generation_at, %wait, %generation) : (!llvm.ptr, i64, i64) -> ()
  %b = llvm.atomicrmw sub %sleepers_at, %one32 seq_cst : !llvm.ptr, i32
  llvm.br ^idle
}}

// Starts workers up to the size of the team, or as many as the system allows.
llvm.func internal @grow(%team: i64) attributes {{passthrough = ["noinline"]}} {{
  {slots}
  %null = llvm.mlir.zero : !llvm.ptr
  %worker = llvm.mlir.addressof @worker : !llvm.ptr
  %id = llvm.alloca %one x i64 : (i64) -> !llvm.ptr
  llvm.br ^next
^next:
  %started = llvm.load %started_at : !llvm.ptr -> i64
  %with = arith.addi %started, %one : i64
  %few = arith.cmpi ult, %with, %team : i64
  llvm.cond_br %few, ^create, ^out
^create:
  %failed = llvm.call @pthread_create(%id, %null, %worker, %null)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  %good = arith.cmpi eq, %failed, %none : i32
  llvm.cond_br %good, ^created, ^refused
^created:
  %thread = llvm.load %id : !llvm.ptr -> i64
  %detached = llvm.call @pthread_detach(%thread) : (i64) -> i32
  llvm.store %with, %started_at : i64, !llvm.ptr
  llvm.br ^next
^refused:
  llvm.store %with, %limit_at : i64, !llvm.ptr
  llvm.br ^out
^out:
  llvm.return
}}

// Waits until the job is done.
llvm.func internal @await() attributes {{passthrough = ["noinline"]}} {{
  {slots}
  %ticks = arith.constant {ticks} : i64
  %since = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.br ^watch
^watch:
  %pending = llvm.load %pending_at atomic acquire {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %complete = arith.cmpi eq, %pending, %none : i32
  llvm.cond_br %complete, ^out, ^rest
^rest:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %spent = arith.subi %now, %since : i64
  %enough = arith.cmpi ugt, %spent, %ticks : i64
  llvm.cond_br %enough, ^settle, ^watch
^settle:
  // Sleeps, so that a worker without a core gets this one.
  %told = llvm.atomicrmw xchg %waiting_at, %one32 seq_cst : !llvm.ptr, i32
  llvm.br ^again
^again:
  %rest = llvm.load %pending_at atomic seq_cst {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %finished = arith.cmpi eq, %rest, %none : i32
  llvm.cond_br %finished, ^up, ^down
^down:
  %value = arith.extui %rest : i32 to i64
  llvm.call @futex(%pending_at, %wait, %value) : (!llvm.ptr, i64, i64) -> ()
  llvm.br ^again
^up:
  llvm.store %none, %waiting_at atomic monotonic {{alignment = 4 : i64}} : i32, !llvm.ptr
  llvm.return
^out:
  llvm.return
}}

{team}

llvm.func @{symbol}(%body: !llvm.ptr, %table: !llvm.ptr, %count: i64, %grain: i64) {{
  {slots}
  %everyone = arith.constant 2147483647 : i64
  %limit = llvm.load %limit_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %ask = llvm.load %ask_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %asks = arith.cmpi ne, %ask, %zero : i64
  llvm.cond_br %asks, ^asked, ^sized(%limit, %front : i64, i1)
^asked:
  %other = llvm.inttoptr %ask : i64 to !llvm.ptr
  %answer = llvm.call %other() : !llvm.ptr, () -> i32
  %wide = arith.extui %answer : i32 to i64
  %lower = arith.minui %limit, %wide : i64
  %same = arith.cmpi eq, %lower, %wide : i64
  llvm.br ^sized(%lower, %same : i64, i1)
^sized(%team: i64, %equal: i1):
  // Units: as small as `grain`, but no more than a ticket can count.
  %over = arith.addi %count, %mask : i64
  %over1 = arith.subi %over, %one : i64
  %least = arith.divui %over1, %mask : i64
  %unit0 = arith.maxui %grain, %least : i64
  %unit = arith.maxui %unit0, %one : i64
  %up = arith.addi %count, %unit : i64
  %up1 = arith.subi %up, %one : i64
  %units = arith.divui %up1, %unit : i64
  %single = arith.cmpi ule, %units, %one : i64
  %alone = arith.cmpi ule, %team, %one : i64
  %no = arith.ori %single, %alone : i1
  llvm.cond_br %no, ^serial, ^enter
^enter:
  // One job at a time: a second caller runs its own job alone.
  %held = llvm.atomicrmw xchg %busy_at, %one32 acq_rel : !llvm.ptr, i32
  %free = arith.cmpi eq, %held, %none : i32
  llvm.cond_br %free, ^publish, ^serial
^serial:
  llvm.call %body(%table, %zero, %count) : !llvm.ptr, (!llvm.ptr, i64, i64) -> ()
  llvm.return
^publish:
  // A region of another size would terminate some of torch's threads.
  llvm.cond_br %equal, ^meet, ^own
^meet:
  %joined = llvm.call @torch_helps() : () -> i1
  llvm.cond_br %joined, ^post(%one, %joined : i64, i1), ^own
^own:
  %started0 = llvm.load %started_at : !llvm.ptr -> i64
  %present = arith.addi %started0, %one : i64
  %short = arith.cmpi ult, %present, %team : i64
  llvm.cond_br %short, ^grow, ^post(%team, %front : i64, i1)
^grow:
  llvm.call @grow(%team) : (i64) -> ()
  llvm.br ^post(%team, %front : i64, i1)
^post(%welcome: i64, %torch: i1):
  %body_i = llvm.ptrtoint %body : !llvm.ptr to i64
  %table_i = llvm.ptrtoint %table : !llvm.ptr to i64
  %units32 = arith.trunci %units : i64 to i32
  llvm.store %body_i, %function_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %table_i, %table_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %count, %count_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %unit, %unit_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %team, %team_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %welcome, %open_at atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.store %units32, %pending_at atomic monotonic {{alignment = 4 : i64}} : i32, !llvm.ptr
  %old = llvm.load %ticket_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %number = arith.shrui %old, %word : i64
  %number1 = arith.addi %number, %one : i64
  %generation = arith.shli %number1, %word : i64
  %all = arith.shli %units, %sixteen : i64
  %ticket = arith.ori %generation, %all : i64
  %was = llvm.atomicrmw xchg %ticket_at, %ticket seq_cst : !llvm.ptr, i64
  llvm.cond_br %torch, ^region, ^call
^region:
  llvm.call @torch_region(%team) : (i64) -> ()
  llvm.br ^leave
^call:
  %sleepers = llvm.load %sleepers_at atomic seq_cst {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %sleeping = arith.cmpi ne, %sleepers, %none : i32
  llvm.cond_br %sleeping, ^rouse, ^help
^rouse:
  // Workers outside the team may be woken instead: then wake all.
  %started = llvm.load %started_at : !llvm.ptr -> i64
  %extra = arith.cmpi uge, %started, %team : i64
  %others = arith.subi %team, %one : i64
  %pieces = arith.subi %units, %one : i64
  %needed = arith.minui %others, %pieces : i64
  %called = arith.select %extra, %everyone, %needed : i64
  llvm.call @futex(%generation_at, %wake, %called) : (!llvm.ptr, i64, i64) -> ()
  llvm.br ^help
^help:
  llvm.call @take(%front) : (i1) -> ()
  llvm.call @await() : () -> ()
  llvm.br ^leave
^leave:
  llvm.store %none, %busy_at atomic release {{alignment = 4 : i64}} : i32, !llvm.ptr
  llvm.return
}}
"""

# SIGILL, SIGBUS, SIGFPE and SIGSEGV are delivered to the thread that causes them
_SIGNALS = ~sum(1 << (number - 1) for number in (4, 7, 8, 11))


def text() -> str:
    """The pool as an MLIR module, for 64-bit Linux on x86."""
    places = ["%state = llvm.mlir.addressof @state : !llvm.ptr"]
    places += [
        f"%{name}_at = llvm.getelementptr %state[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64"
        for name, slot in SLOTS.items()
    ]
    # the upper half of the ticket, which the system can wait on
    places.append(
        "%generation_at = llvm.getelementptr %ticket_at[1] : (!llvm.ptr) -> !llvm.ptr, i32"
    )
    places += [f"%{name} = arith.constant {value}" for name, value in CONSTANTS.items()]
    slots = "\n  ".join(places)
    return _TEXT.format(
        size=SIZE,
        slots=slots,
        ticks=SPIN_TICKS,
        signals=_SIGNALS,
        symbol=threads.SYMBOL,
        team=team_text.text(slots),
    )
