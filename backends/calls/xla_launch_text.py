"""The part of the handler for XLA that launches kernels of a GPU through CUDA's driver.

A step LAUNCH has, after its kind: `cuLaunchKernel`, the function, the three sizes of the grid, the
three sizes of a block, bytes of shared memory, its own size in words, the number of parameters, and
`cuTensorMapReplaceAddress`. A parameter is its kind, an address, and a place. ADDRESS passes the
address of the place. FIXED passes the value at the address. MAP passes a copy of the tensor map at
the address, for the memory of the place. A step COPY has `cuMemcpyDtoDAsync`, the target, the
source, and the number of bytes. A step FILL has a function such as `cuMemsetD32Async`, the target,
the value, and the number of times.
"""

from __future__ import annotations

LAUNCH_HEAD = 13  # words of a LAUNCH before its parameters
LAUNCH_SIZE = 10  # the word of a LAUNCH with its own size
PARAMETER = 4  # words of a parameter
ADDRESS, FIXED, MAP = range(3)  # kinds of parameters
MAP_WORDS = 16  # of a tensor map

GPU = f"""\
// The parameters of a kernel of a GPU: pointers to the slots that contain their values.
llvm.func internal @parameters(
    %arrays: !llvm.ptr, %step: !llvm.ptr, %slots: !llvm.ptr, %maps: !llvm.ptr, %given: !llvm.ptr
) -> i32 {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %width = arith.constant {PARAMETER} : i64
  %head = arith.constant {LAUNCH_HEAD} : i64
  %count_i = arith.constant 11 : i64
  %map_i = arith.constant 12 : i64
  %map_words = arith.constant {MAP_WORDS} : i64
  %map_bytes = arith.constant {8 * MAP_WORDS} : i64
  %good = arith.constant 0 : i32
  %count = llvm.call @word(%step, %count_i) : (!llvm.ptr, i64) -> i64
  %status = scf.for %i = %zero to %count step %one iter_args(%so_far = %good) -> (i32) : i64 {{
    %first = arith.muli %i, %width : i64
    %at = arith.addi %first, %head : i64
    %entry = llvm.getelementptr %step[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %kind = llvm.call @word(%entry, %zero) : (!llvm.ptr, i64) -> i64
    %value = llvm.call @word(%entry, %one) : (!llvm.ptr, i64) -> i64
    %place = llvm.getelementptr %entry[2] : (!llvm.ptr) -> !llvm.ptr, i64
    %slot = llvm.getelementptr %slots[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %map_at = arith.muli %i, %map_words : i64
    %map = llvm.getelementptr %maps[%map_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %is_address = arith.cmpi eq, %kind, %zero : i64
    %is_map = arith.cmpi eq, %kind, %two : i64
    %fixed = llvm.inttoptr %value : i64 to !llvm.ptr
    %target, %next = scf.if %is_address -> (!llvm.ptr, i32) {{
      %address = llvm.call @address(%arrays, %place) : (!llvm.ptr, !llvm.ptr) -> i64
      llvm.store %address, %slot : i64, !llvm.ptr
      scf.yield %slot, %so_far : !llvm.ptr, i32
    }} else {{
      %other, %left = scf.if %is_map -> (!llvm.ptr, i32) {{
        %address = llvm.call @address(%arrays, %place) : (!llvm.ptr, !llvm.ptr) -> i64
        %copied = llvm.call @memmove(%map, %fixed, %map_bytes)
          : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
        %point = llvm.call @pointer(%step, %map_i) : (!llvm.ptr, i64) -> !llvm.ptr
        %memory = llvm.inttoptr %address : i64 to !llvm.ptr
        %found = llvm.call %point(%map, %memory) : !llvm.ptr, (!llvm.ptr, !llvm.ptr) -> i32
        %both = arith.ori %found, %so_far : i32
        scf.yield %map, %both : !llvm.ptr, i32
      }} else {{
        scf.yield %fixed, %so_far : !llvm.ptr, i32
      }}
      scf.yield %other, %left : !llvm.ptr, i32
    }}
    %given_at = llvm.getelementptr %given[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
    llvm.store %target, %given_at : !llvm.ptr, !llvm.ptr
    scf.yield %next : i32
  }}
  llvm.return %status : i32
}}

llvm.func internal @size(%step: !llvm.ptr, %number: i64) -> i32 {{
  %wide = llvm.call @word(%step, %number) : (!llvm.ptr, i64) -> i64
  %size = arith.trunci %wide : i64 to i32
  llvm.return %size : i32
}}

// Launches a kernel of a GPU by `cuLaunchKernel`; returns the driver's status.
llvm.func internal @launch_on_gpu(
    %arrays: !llvm.ptr, %step: !llvm.ptr, %stream: !llvm.ptr
) -> i32 {{
  %null = llvm.mlir.zero : !llvm.ptr
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %three = arith.constant 3 : i64
  %grid_y_i = arith.constant 4 : i64
  %grid_z_i = arith.constant 5 : i64
  %x_i = arith.constant 6 : i64
  %y_i = arith.constant 7 : i64
  %z_i = arith.constant 8 : i64
  %shared_i = arith.constant 9 : i64
  %count_i = arith.constant 11 : i64
  %map_words = arith.constant {MAP_WORDS} : i64
  %good = arith.constant 0 : i32
  %count = llvm.call @word(%step, %count_i) : (!llvm.ptr, i64) -> i64
  %words = arith.muli %count, %map_words : i64
  %slots = llvm.alloca %count x i64 : (i64) -> !llvm.ptr
  %given = llvm.alloca %count x !llvm.ptr : (i64) -> !llvm.ptr
  %maps = llvm.alloca %words x i64 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr
  %prepared = llvm.call @parameters(%arrays, %step, %slots, %maps, %given)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  %is_good = arith.cmpi eq, %prepared, %good : i32
  %status = scf.if %is_good -> (i32) {{
    %launch = llvm.call @pointer(%step, %one) : (!llvm.ptr, i64) -> !llvm.ptr
    %function = llvm.call @pointer(%step, %two) : (!llvm.ptr, i64) -> !llvm.ptr
    %grid_x = llvm.call @size(%step, %three) : (!llvm.ptr, i64) -> i32
    %grid_y = llvm.call @size(%step, %grid_y_i) : (!llvm.ptr, i64) -> i32
    %grid_z = llvm.call @size(%step, %grid_z_i) : (!llvm.ptr, i64) -> i32
    %x = llvm.call @size(%step, %x_i) : (!llvm.ptr, i64) -> i32
    %y = llvm.call @size(%step, %y_i) : (!llvm.ptr, i64) -> i32
    %z = llvm.call @size(%step, %z_i) : (!llvm.ptr, i64) -> i32
    %shared = llvm.call @size(%step, %shared_i) : (!llvm.ptr, i64) -> i32
    %found = llvm.call %launch(
      %function, %grid_x, %grid_y, %grid_z, %x, %y, %z, %shared, %stream, %given, %null
    ) : !llvm.ptr, (
      !llvm.ptr, i32, i32, i32, i32, i32, i32, i32, !llvm.ptr, !llvm.ptr, !llvm.ptr
    ) -> i32
    scf.yield %found : i32
  }} else {{
    scf.yield %prepared : i32
  }}
  llvm.return %status : i32
}}

// Copies memory of a GPU on its stream; returns the driver's status.
llvm.func internal @copy_on_gpu(
    %arrays: !llvm.ptr, %step: !llvm.ptr, %stream: !llvm.ptr
) -> i32 {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %size_i = arith.constant 6 : i64
  %good = arith.constant 0 : i32
  %target_at = llvm.getelementptr %step[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %source_at = llvm.getelementptr %step[4] : (!llvm.ptr) -> !llvm.ptr, i64
  %target = llvm.call @address(%arrays, %target_at) : (!llvm.ptr, !llvm.ptr) -> i64
  %source = llvm.call @address(%arrays, %source_at) : (!llvm.ptr, !llvm.ptr) -> i64
  %size = llvm.call @word(%step, %size_i) : (!llvm.ptr, i64) -> i64
  %differs = arith.cmpi ne, %target, %source : i64
  %is_any = arith.cmpi ne, %size, %zero : i64
  %goes = arith.andi %differs, %is_any : i1
  %status = scf.if %goes -> (i32) {{
    %copy = llvm.call @pointer(%step, %one) : (!llvm.ptr, i64) -> !llvm.ptr
    %found = llvm.call %copy(%target, %source, %size, %stream)
      : !llvm.ptr, (i64, i64, i64, !llvm.ptr) -> i32
    scf.yield %found : i32
  }} else {{
    scf.yield %good : i32
  }}
  llvm.return %status : i32
}}

// Fills memory of a GPU with a number on its stream; returns the driver's status.
llvm.func internal @fill_on_gpu(
    %arrays: !llvm.ptr, %step: !llvm.ptr, %stream: !llvm.ptr
) -> i32 {{
  %one = arith.constant 1 : i64
  %value_i = arith.constant 4 : i64
  %count_i = arith.constant 5 : i64
  %target_at = llvm.getelementptr %step[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %target = llvm.call @address(%arrays, %target_at) : (!llvm.ptr, !llvm.ptr) -> i64
  %value = llvm.call @size(%step, %value_i) : (!llvm.ptr, i64) -> i32
  %count = llvm.call @word(%step, %count_i) : (!llvm.ptr, i64) -> i64
  %fill = llvm.call @pointer(%step, %one) : (!llvm.ptr, i64) -> !llvm.ptr
  %found = llvm.call %fill(%target, %value, %count, %stream)
    : !llvm.ptr, (i64, i32, i64, !llvm.ptr) -> i32
  llvm.return %found : i32
}}

// The stream of a call; null on a CPU.
llvm.func internal @stream_of(%frame: !llvm.ptr, %plan: !llvm.ptr) -> !llvm.ptr {{
  %null = llvm.mlir.zero : !llvm.ptr
  %zero = arith.constant 0 : i64
  %two = arith.constant 2 : i64
  %three = arith.constant 3 : i64
  %four = arith.constant 4 : i64
  %get_i = arith.constant 10 : i64
  %size = arith.constant 32 : i64
  %asks = llvm.call @word(%plan, %four) : (!llvm.ptr, i64) -> i64
  %is_asked = arith.cmpi ne, %asks, %zero : i64
  llvm.cond_br %is_asked, ^ask, ^out(%null : !llvm.ptr)
^ask:
  %api = llvm.call @pointer(%frame, %two) : (!llvm.ptr, i64) -> !llvm.ptr
  %context = llvm.call @pointer(%frame, %three) : (!llvm.ptr, i64) -> !llvm.ptr
  %args = llvm.alloca %four x i64 : (i64) -> !llvm.ptr
  %extension_at = llvm.getelementptr %args[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %context_at = llvm.getelementptr %args[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %stream_at = llvm.getelementptr %args[3] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %size, %args : i64, !llvm.ptr
  llvm.store %zero, %extension_at : i64, !llvm.ptr
  llvm.store %context, %context_at : !llvm.ptr, !llvm.ptr
  llvm.store %zero, %stream_at : i64, !llvm.ptr
  %get = llvm.call @pointer(%api, %get_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %refused = llvm.call %get(%args) : !llvm.ptr, (!llvm.ptr) -> !llvm.ptr
  %found = llvm.load %stream_at : !llvm.ptr -> !llvm.ptr
  llvm.br ^out(%found : !llvm.ptr)
^out(%stream: !llvm.ptr):
  llvm.return %stream : !llvm.ptr
}}
"""
