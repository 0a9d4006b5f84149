"""The text of `crossing`: functions to call, and a plan, are in the tuple it is bound to."""

SYMBOL = "stack_enter"

# The function is bound to a tuple: callables and arguments, then a plan of numbers. The plan has
# the numbers of arguments, results, slots, kernels and copies. Then follow, for each slot of a
# table, its address and the number of its array (arguments first); for each kernel, code and table;
# and for each copy, target array, source array and bytes.
_CHECK, _ADDRESS, _MAKE, _LAYOUTS, _ACQUIRE, _RELEASE, _NONE, _PLAN = range(8)

_API = """\
llvm.func @PyErr_Clear()
llvm.func @PyErr_Occurred() -> !llvm.ptr
llvm.func @PyEval_RestoreThread(!llvm.ptr)
llvm.func @PyEval_SaveThread() -> !llvm.ptr
llvm.func @PyBytes_AsString(!llvm.ptr) -> !llvm.ptr
llvm.func @PyList_GetItem(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @PyList_New(i64) -> !llvm.ptr
llvm.func @PyList_SetItem(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @PyLong_AsVoidPtr(!llvm.ptr) -> !llvm.ptr
llvm.func @PyObject_Call(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @PyObject_CallNoArgs(!llvm.ptr) -> !llvm.ptr
llvm.func @PyObject_IsTrue(!llvm.ptr) -> i32
llvm.func @PyObject_Vectorcall(!llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr
llvm.func @PySequence_Tuple(!llvm.ptr) -> !llvm.ptr
llvm.func @PyTuple_GetItem(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @Py_DecRef(!llvm.ptr)
llvm.func @Py_IncRef(!llvm.ptr)
llvm.func @memcpy(!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
"""

TEXT = f"""\
{_API}
llvm.func internal @item(%tuple: !llvm.ptr, %i: i64) -> !llvm.ptr {{
  %found = llvm.call @PyTuple_GetItem(%tuple, %i) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %found : !llvm.ptr
}}

// Calls a callable without arguments and drops the result; false if it raises.
llvm.func internal @do(%callable: !llvm.ptr) -> i1 {{
  %null = llvm.mlir.zero : !llvm.ptr
  %no = arith.constant false
  %yes = arith.constant true
  %given = llvm.call @PyObject_CallNoArgs(%callable) : (!llvm.ptr) -> !llvm.ptr
  %raised = llvm.icmp "eq" %given, %null : !llvm.ptr
  llvm.cond_br %raised, ^out(%no : i1), ^drop
^drop:
  llvm.call @Py_DecRef(%given) : (!llvm.ptr) -> ()
  llvm.br ^out(%yes : i1)
^out(%went: i1):
  llvm.return %went : i1
}}

// The list of results. Null if Python raises. None if it does not, but arguments do not match or
// memory is short.
llvm.func @{SYMBOL}(%self: !llvm.ptr, %given: !llvm.ptr) -> !llvm.ptr {{
  %null = llvm.mlir.zero : !llvm.ptr
  %none_i = arith.constant {_NONE} : i64
  %args = llvm.call @PySequence_Tuple(%given) : (!llvm.ptr) -> !llvm.ptr
  %no_args = llvm.icmp "eq" %args, %null : !llvm.ptr
  llvm.cond_br %no_args, ^give(%null : !llvm.ptr), ^call
^call:
  %results = llvm.call @results(%self, %args) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.call @Py_DecRef(%args) : (!llvm.ptr) -> ()
  %is_made = llvm.icmp "ne" %results, %null : !llvm.ptr
  llvm.cond_br %is_made, ^give(%results : !llvm.ptr), ^why
^why:
  %error = llvm.call @PyErr_Occurred() : () -> !llvm.ptr
  %raises = llvm.icmp "ne" %error, %null : !llvm.ptr
  llvm.cond_br %raises, ^give(%null : !llvm.ptr), ^none
^none:
  %none = llvm.call @item(%self, %none_i) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.call @Py_IncRef(%none) : (!llvm.ptr) -> ()
  llvm.br ^give(%none : !llvm.ptr)
^give(%what: !llvm.ptr):
  llvm.return %what : !llvm.ptr
}}

llvm.func internal @results(%self: !llvm.ptr, %args: !llvm.ptr) -> !llvm.ptr {{
  %null = llvm.mlir.zero : !llvm.ptr
  %no = arith.constant 0 : i32
  %check_i = arith.constant {_CHECK} : i64
  %check = llvm.call @item(%self, %check_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %verdict = llvm.call @PyObject_Call(%check, %args, %null)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %raised = llvm.icmp "eq" %verdict, %null : !llvm.ptr
  llvm.cond_br %raised, ^give(%null : !llvm.ptr), ^judge
^judge:
  %truth = llvm.call @PyObject_IsTrue(%verdict) : (!llvm.ptr) -> i32
  llvm.call @Py_DecRef(%verdict) : (!llvm.ptr) -> ()
  %is_alike = arith.cmpi sgt, %truth, %no : i32
  llvm.cond_br %is_alike, ^make, ^give(%null : !llvm.ptr)
^make:
  %made = llvm.call @made(%self) : (!llvm.ptr) -> !llvm.ptr
  %is_short = llvm.icmp "eq" %made, %null : !llvm.ptr
  llvm.cond_br %is_short, ^give(%null : !llvm.ptr), ^run
^run:
  %went = llvm.call @computed(%self, %args, %made) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i1
  llvm.cond_br %went, ^give(%made : !llvm.ptr), ^drop
^drop:
  llvm.call @Py_DecRef(%made) : (!llvm.ptr) -> ()
  llvm.br ^give(%null : !llvm.ptr)
^give(%what: !llvm.ptr):
  llvm.return %what : !llvm.ptr
}}

llvm.func internal @plan(%self: !llvm.ptr) -> !llvm.ptr {{
  %plan_i = arith.constant {_PLAN} : i64
  %bytes = llvm.call @item(%self, %plan_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %plan = llvm.call @PyBytes_AsString(%bytes) : (!llvm.ptr) -> !llvm.ptr
  llvm.return %plan : !llvm.ptr
}}

// A list of memory for results; null if there is none, with Python's error cleared.
llvm.func internal @made(%self: !llvm.ptr) -> !llvm.ptr {{
  %null = llvm.mlir.zero : !llvm.ptr
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %make_i = arith.constant {_MAKE} : i64
  %layouts_i = arith.constant {_LAYOUTS} : i64
  %make = llvm.call @item(%self, %make_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %layouts = llvm.call @item(%self, %layouts_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %plan = llvm.call @plan(%self) : (!llvm.ptr) -> !llvm.ptr
  %count_at = llvm.getelementptr %plan[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %count = llvm.load %count_at : !llvm.ptr -> i64
  %list = llvm.call @PyList_New(%count) : (i64) -> !llvm.ptr
  %no_list = llvm.icmp "eq" %list, %null : !llvm.ptr
  llvm.cond_br %no_list, ^clear, ^look(%zero : i64)
^look(%i: i64):
  %more = arith.cmpi slt, %i, %count : i64
  llvm.cond_br %more, ^make, ^give(%list : !llvm.ptr)
^make:
  %layout = llvm.call @item(%layouts, %i) : (!llvm.ptr, i64) -> !llvm.ptr
  %new = llvm.call @PyObject_Call(%make, %layout, %null)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %no_new = llvm.icmp "eq" %new, %null : !llvm.ptr
  llvm.cond_br %no_new, ^drop, ^keep
^keep:
  %kept = llvm.call @PyList_SetItem(%list, %i, %new) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %next = arith.addi %i, %one : i64
  llvm.br ^look(%next : i64)
^drop:
  llvm.call @Py_DecRef(%list) : (!llvm.ptr) -> ()
  llvm.br ^clear
^clear:
  llvm.call @PyErr_Clear() : () -> ()
  llvm.br ^give(%null : !llvm.ptr)
^give(%what: !llvm.ptr):
  llvm.return %what : !llvm.ptr
}}

// Runs the program on the arguments, into the results; false if Python raises.
llvm.func internal @computed(%self: !llvm.ptr, %args: !llvm.ptr, %made: !llvm.ptr) -> i1 {{
  %null = llvm.mlir.zero : !llvm.ptr
  %no = arith.constant false
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %address_i = arith.constant {_ADDRESS} : i64
  %acquire_i = arith.constant {_ACQUIRE} : i64
  %release_i = arith.constant {_RELEASE} : i64
  %address = llvm.call @item(%self, %address_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %acquire = llvm.call @item(%self, %acquire_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %release = llvm.call @item(%self, %release_i) : (!llvm.ptr, i64) -> !llvm.ptr
  %plan = llvm.call @plan(%self) : (!llvm.ptr) -> !llvm.ptr
  %results_at = llvm.getelementptr %plan[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %given = llvm.load %plan : !llvm.ptr -> i64
  %results = llvm.load %results_at : !llvm.ptr -> i64
  %count = arith.addi %given, %results : i64
  %addresses = llvm.alloca %count x i64 : (i64) -> !llvm.ptr
  %array_at = llvm.alloca %one x !llvm.ptr : (i64) -> !llvm.ptr
  llvm.br ^look(%zero : i64)
^look(%i: i64):
  %more = arith.cmpi slt, %i, %count : i64
  llvm.cond_br %more, ^which, ^lock
^which:
  %is_given = arith.cmpi slt, %i, %given : i64
  llvm.cond_br %is_given, ^argument, ^result
^argument:
  %argument = llvm.call @item(%args, %i) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.br ^ask(%argument : !llvm.ptr)
^result:
  %number = arith.subi %i, %given : i64
  %result = llvm.call @PyList_GetItem(%made, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.br ^ask(%result : !llvm.ptr)
^ask(%array: !llvm.ptr):
  llvm.store %array, %array_at : !llvm.ptr, !llvm.ptr
  %told = llvm.call @PyObject_Vectorcall(%address, %array_at, %one, %null)
    : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr
  %raised = llvm.icmp "eq" %told, %null : !llvm.ptr
  llvm.cond_br %raised, ^out(%no : i1), ^note
^note:
  %where = llvm.call @PyLong_AsVoidPtr(%told) : (!llvm.ptr) -> !llvm.ptr
  llvm.call @Py_DecRef(%told) : (!llvm.ptr) -> ()
  %place = llvm.getelementptr %addresses[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %where, %place : !llvm.ptr, !llvm.ptr
  %next = arith.addi %i, %one : i64
  llvm.br ^look(%next : i64)
^lock:
  %locked = llvm.call @do(%acquire) : (!llvm.ptr) -> i1
  llvm.cond_br %locked, ^run, ^out(%no : i1)
^run:
  %thread = llvm.call @PyEval_SaveThread() : () -> !llvm.ptr
  llvm.call @kernels(%plan, %addresses) : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.call @PyEval_RestoreThread(%thread) : (!llvm.ptr) -> ()
  %free = llvm.call @do(%release) : (!llvm.ptr) -> i1
  llvm.br ^out(%free : i1)
^out(%went: i1):
  llvm.return %went : i1
}}

llvm.func internal @kernels(%plan: !llvm.ptr, %addresses: !llvm.ptr) {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %slots_at = llvm.getelementptr %plan[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %kernels_at = llvm.getelementptr %plan[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %copies_at = llvm.getelementptr %plan[4] : (!llvm.ptr) -> !llvm.ptr, i64
  %first = llvm.getelementptr %plan[5] : (!llvm.ptr) -> !llvm.ptr, i64
  %slots = llvm.load %slots_at : !llvm.ptr -> i64
  %kernels = llvm.load %kernels_at : !llvm.ptr -> i64
  %copies = llvm.load %copies_at : !llvm.ptr -> i64
  llvm.br ^slot(%zero, %first : i64, !llvm.ptr)
^slot(%s: i64, %pair: !llvm.ptr):
  %more_slots = arith.cmpi slt, %s, %slots : i64
  llvm.cond_br %more_slots, ^fill, ^kernel(%zero, %pair : i64, !llvm.ptr)
^fill:
  %number_at = llvm.getelementptr %pair[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %slot = llvm.load %pair : !llvm.ptr -> !llvm.ptr
  %number = llvm.load %number_at : !llvm.ptr -> i64
  %place = llvm.getelementptr %addresses[%number] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %address = llvm.load %place : !llvm.ptr -> i64
  llvm.store %address, %slot : i64, !llvm.ptr
  %next_slot = arith.addi %s, %one : i64
  %next_pair = llvm.getelementptr %pair[2] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.br ^slot(%next_slot, %next_pair : i64, !llvm.ptr)
^kernel(%k: i64, %kernel: !llvm.ptr):
  %more_kernels = arith.cmpi slt, %k, %kernels : i64
  llvm.cond_br %more_kernels, ^run, ^copy(%zero, %kernel : i64, !llvm.ptr)
^run:
  %table_at = llvm.getelementptr %kernel[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %code = llvm.load %kernel : !llvm.ptr -> !llvm.ptr
  %table = llvm.load %table_at : !llvm.ptr -> !llvm.ptr
  llvm.call %code(%table) : !llvm.ptr, (!llvm.ptr) -> ()
  %next_kernel = arith.addi %k, %one : i64
  %after = llvm.getelementptr %kernel[2] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.br ^kernel(%next_kernel, %after : i64, !llvm.ptr)
^copy(%c: i64, %triple: !llvm.ptr):
  %more_copies = arith.cmpi slt, %c, %copies : i64
  llvm.cond_br %more_copies, ^move, ^out
^move:
  %source_at = llvm.getelementptr %triple[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %size_at = llvm.getelementptr %triple[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %target_i = llvm.load %triple : !llvm.ptr -> i64
  %source_i = llvm.load %source_at : !llvm.ptr -> i64
  %size = llvm.load %size_at : !llvm.ptr -> i64
  %to_at = llvm.getelementptr %addresses[%target_i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %from_at = llvm.getelementptr %addresses[%source_i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %to = llvm.load %to_at : !llvm.ptr -> !llvm.ptr
  %from = llvm.load %from_at : !llvm.ptr -> !llvm.ptr
  %moved = llvm.call @memcpy(%to, %from, %size) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  %next_copy = arith.addi %c, %one : i64
  %next_triple = llvm.getelementptr %triple[3] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.br ^copy(%next_copy, %next_triple : i64, !llvm.ptr)
^out:
  llvm.return
}}
"""
