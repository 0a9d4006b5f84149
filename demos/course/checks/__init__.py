"""The checks of each exercise; `python -m stack.demos.course grade` runs these."""
