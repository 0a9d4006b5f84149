"""The simulator: a partitioned program on machines that are not at hand."""
