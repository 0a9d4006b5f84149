"""A course on compilers for machine learning, taught with this one: lessons, exercises and a compiler to build."""
