"""What each exercise has to do; `python -m stack.demos.course grade` runs these."""
