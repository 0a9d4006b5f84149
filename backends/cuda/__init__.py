"""The loop level as CUDA C++."""
