"""The plain loop nest of a group: a serial loop for each axis, scalars inside, no schedule."""
