"""The text of the native handler of XLA's foreign function interface.

One handler runs every program. The custom call has one attribute, the address of a plan: numbers
that describe the steps of the call. The memory of a value is an array's number and an offset in
bytes. Array 0 is at address 0, so that its offsets are addresses; then come the operands, and then
the results. All tables are on the stack: XLA may run one program on several threads at once.

XLA's threads flush denormal numbers to 0. The handler restores the processor's default mode while
it runs kernels, so that results are those on threads of our own.

Struct offsets are those of `xla/ffi/api/c_api.h`, whose major version 0 keeps them.
"""

from __future__ import annotations

from .xla_launch_text import GPU, LAUNCH_SIZE

SYMBOL = "stack_xla_call"
HEAD = 5  # operands, results, steps, the slots of the longest table, and 1 on a GPU
CALL, MOVE, LAUNCH, COPY, FILL = range(5)  # kinds of steps

_METADATA = 1  # the extension that asks for the version of the interface
_CAPTURABLE = 1  # a trait: XLA may capture the call in a CUDA graph
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
_MISFIT = "a call has other operands or results than its plan"
_DRIVER = "the CUDA driver refuses to launch a kernel"


_DEFAULT_MODE = 0x1F80  # MXCSR: all exceptions masked, round to nearest, denormals kept
_MODE = f"""\
llvm.func internal @with_mode(%arrays: !llvm.ptr, %plan: !llvm.ptr, %stream: !llvm.ptr) -> i32 {{
  %one = arith.constant 1 : i64
  %default = arith.constant {_DEFAULT_MODE} : i32
  %old = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  %new = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  llvm.store %default, %new : i32, !llvm.ptr
  llvm.call_intrinsic "llvm.x86.sse.stmxcsr"(%old) : (!llvm.ptr) -> ()
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%new) : (!llvm.ptr) -> ()
  %status = llvm.call @steps(%arrays, %plan, %stream) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%old) : (!llvm.ptr) -> ()
  llvm.return %status : i32
}}
"""
_NO_MODE = """\
llvm.func internal @with_mode(%arrays: !llvm.ptr, %plan: !llvm.ptr, %stream: !llvm.ptr) -> i32 {
  %status = llvm.call @steps(%arrays, %plan, %stream) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return %status : i32
}
"""

# Reads of tables, and the address of a value.
_WORDS = f"""\
llvm.func @memmove(!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
llvm.mlir.global internal constant @misfit("{_MISFIT}\\00")
llvm.mlir.global internal constant @driver("{_DRIVER}\\00")

llvm.func internal @word(%base: !llvm.ptr, %i: i64) -> i64 {{
  %at = llvm.getelementptr %base[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %found = llvm.load %at : !llvm.ptr -> i64
  llvm.return %found : i64
}}

llvm.func internal @pointer(%base: !llvm.ptr, %i: i64) -> !llvm.ptr {{
  %at = llvm.getelementptr %base[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %found = llvm.load %at : !llvm.ptr -> !llvm.ptr
  llvm.return %found : !llvm.ptr
}}

// The address of the array number and offset at `place`.
llvm.func internal @address(%arrays: !llvm.ptr, %place: !llvm.ptr) -> i64 {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %number = llvm.call @word(%place, %zero) : (!llvm.ptr, i64) -> i64
  %offset = llvm.call @word(%place, %one) : (!llvm.ptr, i64) -> i64
  %start = llvm.call @word(%arrays, %number) : (!llvm.ptr, i64) -> i64
  %sum = arith.addi %start, %offset : i64
  llvm.return %sum : i64
}}
"""

# The table of arrays: operands, then results.
_FILL = """\
// Stores the addresses of `count` buffers from slot `first` on.
llvm.func internal @fill(%arrays: !llvm.ptr, %buffers: !llvm.ptr, %first: i64, %count: i64) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %data_i = arith.constant 3 : i64
  scf.for %i = %zero to %count step %one : i64 {
    %buffer = llvm.call @pointer(%buffers, %i) : (!llvm.ptr, i64) -> !llvm.ptr
    %data = llvm.call @word(%buffer, %data_i) : (!llvm.ptr, i64) -> i64
    %slot = arith.addi %first, %i : i64
    %at = llvm.getelementptr %arrays[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    llvm.store %data, %at : i64, !llvm.ptr
  }
  llvm.return
}
"""

# Steps on a processor: a call of compiled code, and a copy.
_CALL = """\
// Fills a table with `count` addresses, and calls the code at its front.
llvm.func internal @launch(%arrays: !llvm.ptr, %step: !llvm.ptr, %table: !llvm.ptr) -> i64 {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %head = arith.constant 3 : i64
  %code = llvm.call @pointer(%step, %one) : (!llvm.ptr, i64) -> !llvm.ptr
  %count = llvm.call @word(%step, %two) : (!llvm.ptr, i64) -> i64
  scf.for %i = %zero to %count step %one : i64 {
    %double = arith.muli %i, %two : i64
    %place_i = arith.addi %double, %head : i64
    %place = llvm.getelementptr %step[%place_i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %found = llvm.call @address(%arrays, %place) : (!llvm.ptr, !llvm.ptr) -> i64
    %at = llvm.getelementptr %table[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    llvm.store %found, %at : i64, !llvm.ptr
  }
  llvm.call %code(%table) : !llvm.ptr, (!llvm.ptr) -> ()
  %slots = arith.muli %count, %two : i64
  %size = arith.addi %slots, %head : i64
  llvm.return %size : i64
}

llvm.func internal @move(%arrays: !llvm.ptr, %step: !llvm.ptr) {
  %size_i = arith.constant 5 : i64
  %target_at = llvm.getelementptr %step[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %source_at = llvm.getelementptr %step[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %target = llvm.call @address(%arrays, %target_at) : (!llvm.ptr, !llvm.ptr) -> i64
  %source = llvm.call @address(%arrays, %source_at) : (!llvm.ptr, !llvm.ptr) -> i64
  %size = llvm.call @word(%step, %size_i) : (!llvm.ptr, i64) -> i64
  %differs = arith.cmpi ne, %target, %source : i64
  scf.if %differs {
    %to = llvm.inttoptr %target : i64 to !llvm.ptr
    %from = llvm.inttoptr %source : i64 to !llvm.ptr
    %moved = llvm.call @memmove(%to, %from, %size) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  }
  llvm.return
}
"""

# One step, by its kind.
_STEP = f"""\
// Runs one step; returns its size in words, and the driver's status.
llvm.func internal @step(
    %arrays: !llvm.ptr, %step: !llvm.ptr, %table: !llvm.ptr, %stream: !llvm.ptr
) -> !llvm.struct<(i64, i32)> {{
  %zero = arith.constant 0 : i64
  %size_i = arith.constant {LAUNCH_SIZE} : i64
  %call = arith.constant {CALL} : i64
  %launched = arith.constant {LAUNCH} : i64
  %copied = arith.constant {COPY} : i64
  %filled = arith.constant {FILL} : i64
  %move_size = arith.constant 6 : i64
  %copy_size = arith.constant 7 : i64
  %good = arith.constant 0 : i32
  %none = llvm.mlir.undef : !llvm.struct<(i64, i32)>
  %kind = llvm.call @word(%step, %zero) : (!llvm.ptr, i64) -> i64
  %is_call = arith.cmpi eq, %kind, %call : i64
  llvm.cond_br %is_call, ^call, ^no_call
^call:
  %used = llvm.call @launch(%arrays, %step, %table) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i64
  llvm.br ^out(%used, %good : i64, i32)
^no_call:
  %is_launch = arith.cmpi eq, %kind, %launched : i64
  llvm.cond_br %is_launch, ^gpu, ^no_gpu
^gpu:
  %status = llvm.call @launch_on_gpu(%arrays, %step, %stream)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  %launch_size = llvm.call @word(%step, %size_i) : (!llvm.ptr, i64) -> i64
  llvm.br ^out(%launch_size, %status : i64, i32)
^no_gpu:
  %is_copy = arith.cmpi eq, %kind, %copied : i64
  llvm.cond_br %is_copy, ^copy, ^no_copy
^copy:
  %copy_status = llvm.call @copy_on_gpu(%arrays, %step, %stream)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.br ^out(%copy_size, %copy_status : i64, i32)
^no_copy:
  %is_fill = arith.cmpi eq, %kind, %filled : i64
  llvm.cond_br %is_fill, ^fill, ^move
^fill:
  %fill_status = llvm.call @fill_on_gpu(%arrays, %step, %stream)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.br ^out(%move_size, %fill_status : i64, i32)
^move:
  llvm.call @move(%arrays, %step) : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.br ^out(%move_size, %good : i64, i32)
^out(%size: i64, %found: i32):
  %part = llvm.insertvalue %size, %none[0] : !llvm.struct<(i64, i32)>
  %both = llvm.insertvalue %found, %part[1] : !llvm.struct<(i64, i32)>
  llvm.return %both : !llvm.struct<(i64, i32)>
}}
"""

# All steps of a plan.
_STEPS = f"""\
// Runs the steps until the driver refuses one; returns its status.
llvm.func internal @steps(%arrays: !llvm.ptr, %plan: !llvm.ptr, %stream: !llvm.ptr) -> i32 {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %three = arith.constant 3 : i64
  %head = arith.constant {HEAD} : i64
  %good = arith.constant 0 : i32
  %count = llvm.call @word(%plan, %two) : (!llvm.ptr, i64) -> i64
  %longest = llvm.call @word(%plan, %three) : (!llvm.ptr, i64) -> i64
  %table = llvm.alloca %longest x i64 : (i64) -> !llvm.ptr
  %end, %last = scf.for %i = %zero to %count step %one
      iter_args(%at = %head, %status = %good) -> (i64, i32) : i64 {{
    %is_good = arith.cmpi eq, %status, %good : i32
    %next, %found = scf.if %is_good -> (i64, i32) {{
      %step = llvm.getelementptr %plan[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %both = llvm.call @step(%arrays, %step, %table, %stream)
        : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.struct<(i64, i32)>
      %size = llvm.extractvalue %both[0] : !llvm.struct<(i64, i32)>
      %now = llvm.extractvalue %both[1] : !llvm.struct<(i64, i32)>
      %after = arith.addi %at, %size : i64
      scf.yield %after, %now : i64, i32
    }} else {{
      scf.yield %at, %status : i64, i32
    }}
    scf.yield %next, %found : i64, i32
  }}
  llvm.return %last : i32
}}
"""

# An error of XLA from a message.
_ERROR = f"""\
llvm.func internal @error(%api: !llvm.ptr, %message: !llvm.ptr) -> !llvm.ptr {{
  %one = arith.constant 1 : i64
  %create_i = arith.constant 6 : i64
  %size = arith.constant 28 : i64
  %code = arith.constant {_INTERNAL} : i32
  %words = arith.constant 4 : i64
  %null = arith.constant 0 : i64
  %args = llvm.alloca %words x i64 : (i64) -> !llvm.ptr
  %extension_at = llvm.getelementptr %args[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %message_at = llvm.getelementptr %args[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %code_at = llvm.getelementptr %args[3] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %size, %args : i64, !llvm.ptr
  llvm.store %null, %extension_at : i64, !llvm.ptr
  llvm.store %message, %message_at : !llvm.ptr, !llvm.ptr
  llvm.store %code, %code_at : i32, !llvm.ptr
  %create = llvm.call @pointer(%api, %create_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %made = llvm.call %create(%args) : !llvm.ptr, (!llvm.ptr) -> !llvm.ptr
  llvm.return %made : !llvm.ptr
}}
"""

# A call: check the counts, collect the arrays, run the plan.
_RUN = """\
llvm.func internal @run(%frame: !llvm.ptr) -> !llvm.ptr {
  %null = llvm.mlir.zero : !llvm.ptr
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %api_i = arith.constant 2 : i64
  %operands_i = arith.constant 7 : i64
  %operands_at_i = arith.constant 9 : i64
  %results_i = arith.constant 12 : i64
  %results_at_i = arith.constant 14 : i64
  %attributes_i = arith.constant 20 : i64
  %attributes = llvm.call @pointer(%frame, %attributes_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %scalar = llvm.call @pointer(%attributes, %zero) : (!llvm.ptr, i64) -> !llvm.ptr
  %value = llvm.call @pointer(%scalar, %one) : (!llvm.ptr, i64) -> !llvm.ptr
  %plan = llvm.call @pointer(%value, %zero) : (!llvm.ptr, i64) -> !llvm.ptr
  %operands = llvm.call @word(%frame, %operands_i) : (!llvm.ptr, i64) -> i64
  %results = llvm.call @word(%frame, %results_i) : (!llvm.ptr, i64) -> i64
  %planned = llvm.call @word(%plan, %zero) : (!llvm.ptr, i64) -> i64
  %planned_results = llvm.call @word(%plan, %one) : (!llvm.ptr, i64) -> i64
  %same = arith.cmpi eq, %operands, %planned : i64
  %same_results = arith.cmpi eq, %results, %planned_results : i64
  %fits = arith.andi %same, %same_results : i1
  llvm.cond_br %fits, ^go, ^refuse
^go:
  %first_result = arith.addi %operands, %one : i64
  %count = arith.addi %first_result, %results : i64
  %arrays = llvm.alloca %count x i64 : (i64) -> !llvm.ptr
  llvm.store %zero, %arrays : i64, !llvm.ptr
  %operands_at = llvm.call @pointer(%frame, %operands_at_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %results_at = llvm.call @pointer(%frame, %results_at_i) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.call @fill(%arrays, %operands_at, %one, %operands)
    : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.call @fill(%arrays, %results_at, %first_result, %results)
    : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  %stream = llvm.call @stream_of(%frame, %plan) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %status = llvm.call @with_mode(%arrays, %plan, %stream)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  %good = arith.constant 0 : i32
  %is_good = arith.cmpi eq, %status, %good : i32
  %driver = llvm.mlir.addressof @driver : !llvm.ptr
  llvm.cond_br %is_good, ^out(%null : !llvm.ptr), ^fail(%driver : !llvm.ptr)
^refuse:
  %misfit = llvm.mlir.addressof @misfit : !llvm.ptr
  llvm.br ^fail(%misfit : !llvm.ptr)
^fail(%message: !llvm.ptr):
  %api = llvm.call @pointer(%frame, %api_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %error = llvm.call @error(%api, %message) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.br ^out(%error : !llvm.ptr)
^out(%found: !llvm.ptr):
  llvm.return %found : !llvm.ptr
}
"""


def text(major: int, minor: int, is_x86: bool) -> str:
    """Returns the module, for a version of the interface and a kind of processor.

    A step is its kind, then: for CALL the code, the number of slots, and the memory of each slot of
    the table; for MOVE the target, the source and the number of bytes. LAUNCH, COPY and FILL are
    those of `xla_launch_text`.
    """
    mode = _MODE if is_x86 else _NO_MODE
    parts = (_WORDS, _FILL, _CALL, GPU, _STEP, _STEPS, mode, _ERROR, _RUN, _entry(major, minor))
    return "\n".join(parts)


def _entry(major: int, minor: int) -> str:
    """Returns the handler, which answers XLA's query for the version, and runs every other call."""
    return f"""\
// Answers the query for metadata, else runs the plan; returns an error of XLA, or null.
llvm.func @{SYMBOL}(%frame: !llvm.ptr) -> !llvm.ptr {{
  %null = llvm.mlir.zero : !llvm.ptr
  %metadata = arith.constant {_METADATA} : i32
  %major = arith.constant {major} : i32
  %minor = arith.constant {minor} : i32
  %one = arith.constant 1 : i64
  %asked_i = arith.constant 3 : i64
  %extension = llvm.call @pointer(%frame, %one) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_extended = llvm.icmp "ne" %extension, %null : !llvm.ptr
  llvm.cond_br %is_extended, ^look, ^run
^look:
  %type_at = llvm.getelementptr %extension[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %type = llvm.load %type_at : !llvm.ptr -> i32
  %is_query = arith.cmpi eq, %type, %metadata : i32
  llvm.cond_br %is_query, ^answer, ^run
^answer:
  %asked = llvm.call @pointer(%extension, %asked_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %major_at = llvm.getelementptr %asked[6] : (!llvm.ptr) -> !llvm.ptr, i32
  %minor_at = llvm.getelementptr %asked[7] : (!llvm.ptr) -> !llvm.ptr, i32
  llvm.store %major, %major_at : i32, !llvm.ptr
  llvm.store %minor, %minor_at : i32, !llvm.ptr
  %traits = arith.constant {_CAPTURABLE} : i32
  %traits_at = llvm.getelementptr %asked[8] : (!llvm.ptr) -> !llvm.ptr, i32
  llvm.store %traits, %traits_at : i32, !llvm.ptr
  llvm.return %null : !llvm.ptr
^run:
  %found = llvm.call @run(%frame) : (!llvm.ptr) -> !llvm.ptr
  llvm.return %found : !llvm.ptr
}}
"""
