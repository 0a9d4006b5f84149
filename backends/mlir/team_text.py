"""MLIR text, next to the pool's own, that uses torch's OpenMP threads as helpers while they spin.

They spin for some milliseconds after each parallel loop of torch, and our own workers, if woken
then, would share their cores. So a job that follows such a loop is given to them, as a parallel
region of the same OpenMP library. A region ends when all its threads have arrived, which is slow if
one sleeps or has lost its core. So it is checked first that they run, and after a late region no
other follows for a while.
"""

from __future__ import annotations

# ticks of the CPU clock, about 0.4 ns each
LATE = 2_000_000  # from the caller's last chunk to the end of a region: a thread has lost its core
# Time without regions after a late one: it is quadrupled for each, and reduced by 1/128 for one on
# time.
LEAST_PENALTY = 25_000_000
MOST_PENALTY = 1_600_000_000
RECENT = 25_000  # after a region, its threads still spin for this long
ASLEEP = 2_500_000  # if the threads sleep, they are not checked again for this long
GLANCE = 1_300  # duration of a check: a running thread uses CPU time meanwhile

SLOTS = {
    "enter": 80,  # address of GOMP_parallel; 0 to not use torch's threads
    "number": 81,  # address of omp_get_thread_num
    "master": 82,  # the thread that owns torch's helpers: each caller has its own
    "clock": 83,  # i32: the CPU-time clock of the first helper
    "entered": 84,  # when the last region ended
    "barred": 85,  # earliest time of the next region
    "penalty": 87,  # the last penalty
    "ended": 86,  # when the caller finished its chunks
}

_TEXT = """\
// One thread of a region. When the caller returns, the job is done.
llvm.func internal @torch_part(%unused: !llvm.ptr) {{
  {slots}
  %number_i = llvm.load %number_at : !llvm.ptr -> i64
  %number = llvm.inttoptr %number_i : i64 to !llvm.ptr
  %rank = llvm.call %number() : !llvm.ptr, () -> i32
  %caller = arith.cmpi eq, %rank, %none : i32
  llvm.cond_br %caller, ^lead, ^help
^lead:
  llvm.call @take(%front) : (i1) -> ()
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.store %now, %ended_at : i64, !llvm.ptr
  llvm.call @await() : () -> ()
  llvm.return
^help:
  %sampled = arith.cmpi eq, %rank, %one32 : i32
  llvm.cond_br %sampled, ^tell, ^work
^tell:
  %me = llvm.call @pthread_self() : () -> i64
  %told = llvm.call @pthread_getcpuclockid(%me, %clock_at) : (i64, !llvm.ptr) -> i32
  llvm.br ^work
^work:
  %odd = arith.trunci %rank : i32 to i1
  llvm.call @take(%odd) : (i1) -> ()
  llvm.return
}}

llvm.func internal @torch_region(%team: i64) attributes {{passthrough = ["noinline"]}} {{
  {slots}
  %null = llvm.mlir.zero : !llvm.ptr
  %late = arith.constant {late} : i64
  %least = arith.constant {least} : i64
  %longest = arith.constant {most} : i64
  %less = arith.constant 7 : i64
  %part = llvm.mlir.addressof @torch_part : !llvm.ptr
  %enter_i = llvm.load %enter_at : !llvm.ptr -> i64
  %enter = llvm.inttoptr %enter_i : i64 to !llvm.ptr
  %threads = arith.trunci %team : i64 to i32
  llvm.call %enter(%part, %null, %threads, %none)
    : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i32, i32) -> ()
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.store %now, %entered_at : i64, !llvm.ptr
  %ended = llvm.load %ended_at : !llvm.ptr -> i64
  %waited = arith.subi %now, %ended : i64
  %slow = arith.cmpi ugt, %waited, %late : i64
  %last = llvm.load %penalty_at : !llvm.ptr -> i64
  llvm.cond_br %slow, ^bar, ^forget
^bar:
  %more = arith.shli %last, %two : i64
  %some = arith.maxui %more, %least : i64
  %penalty = arith.minui %some, %longest : i64
  %until = arith.addi %now, %penalty : i64
  llvm.store %until, %barred_at : i64, !llvm.ptr
  llvm.store %penalty, %penalty_at : i64, !llvm.ptr
  llvm.return
^forget:
  %part_of = arith.shrui %last, %less : i64
  %rest = arith.subi %last, %part_of : i64
  llvm.store %rest, %penalty_at : i64, !llvm.ptr
  llvm.return
}}

// CPU nanoseconds of the first of torch's helpers; -1 if it has ended.
llvm.func internal @torch_time() -> i64 {{
  {slots}
  %gone = arith.constant -1 : i64
  %second = arith.constant 1000000000 : i64
  %time = llvm.alloca %two x i64 : (i64) -> !llvm.ptr
  %clock = llvm.load %clock_at : !llvm.ptr -> i32
  %failed = llvm.call @clock_gettime(%clock, %time) : (i32, !llvm.ptr) -> i32
  %seconds = llvm.load %time : !llvm.ptr -> i64
  %rest_at = llvm.getelementptr %time[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %rest = llvm.load %rest_at : !llvm.ptr -> i64
  %whole = arith.muli %seconds, %second : i64
  %sum = arith.addi %whole, %rest : i64
  %good = arith.cmpi eq, %failed, %none : i32
  %answer = arith.select %good, %sum, %gone : i64
  llvm.return %answer : i64
}}

// True if the threads of a region are awake. The first region of a process starts them.
llvm.func internal @torch_helps() -> i1 attributes {{passthrough = ["noinline"]}} {{
  {slots}
  %yes = arith.constant true
  %no = arith.constant false
  %recent = arith.constant {recent} : i64
  %asleep = arith.constant {asleep} : i64
  %glance = arith.constant {glance} : i64
  %enter = llvm.load %enter_at : !llvm.ptr -> i64
  %there = arith.cmpi ne, %enter, %zero : i64
  llvm.cond_br %there, ^known, ^out(%no : i1)
^known:
  %me = llvm.call @pthread_self() : () -> i64
  %master = llvm.load %master_at : !llvm.ptr -> i64
  %new = arith.cmpi eq, %master, %zero : i64
  llvm.cond_br %new, ^adopt, ^check
^adopt:
  llvm.store %me, %master_at : i64, !llvm.ptr
  llvm.br ^out(%yes : i1)
^check:
  %mine = arith.cmpi eq, %master, %me : i64
  llvm.cond_br %mine, ^when, ^out(%no : i1)
^when:
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %barred = llvm.load %barred_at : !llvm.ptr -> i64
  %allowed = arith.cmpi uge, %now, %barred : i64
  llvm.cond_br %allowed, ^since, ^out(%no : i1)
^since:
  %entered = llvm.load %entered_at : !llvm.ptr -> i64
  %passed = arith.subi %now, %entered : i64
  %close = arith.cmpi ult, %passed, %recent : i64
  llvm.cond_br %close, ^out(%yes : i1), ^look
^look:
  %before = llvm.call @torch_time() : () -> i64
  llvm.br ^spin
^spin:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %then = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %looked = arith.subi %then, %now : i64
  %enough = arith.cmpi ugt, %looked, %glance : i64
  llvm.cond_br %enough, ^again, ^spin
^again:
  %after = llvm.call @torch_time() : () -> i64
  %runs = arith.cmpi sgt, %after, %before : i64
  llvm.cond_br %runs, ^out(%runs : i1), ^rest
^rest:
  %later = arith.addi %then, %asleep : i64
  llvm.store %later, %barred_at : i64, !llvm.ptr
  llvm.br ^out(%no : i1)
^out(%answer: i1):
  llvm.return %answer : i1
}}
"""


def text(slots: str) -> str:
    """Returns the functions; `slots` is the text that names the pool's state, and constants."""
    return _TEXT.format(
        slots=slots,
        late=LATE,
        least=LEAST_PENALTY,
        most=MOST_PENALTY,
        recent=RECENT,
        asleep=ASLEEP,
        glance=GLANCE,
    )
