"""A program whose ops come from several lines, of more than one file."""

ROWS = """func @f(%x: f32[40, 96], %b: f32[96]) -> (f32[40]) at tensor {
  %w = broadcast(%b) {axes=[1]} : f32[40, 96] from "m.py:10 net.add"
  %a = add(%x, %w) : f32[40, 96] from "m.py:10 net.add"
  %e = exp(%a) : f32[40, 96] from "m.py:11"
  %s = reduce(%e) {axes=[1], kind="sum"} : f32[40] from "other.py:7"
  return %s
}
"""
