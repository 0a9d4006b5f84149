"""The plain loop nest of a group: one serial loop for each axis, scalars inside, nothing chosen."""
