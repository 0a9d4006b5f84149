"""A course on compilers for machine learning: lessons, exercises, and a compiler to build."""
