"""A course on compilers for machine learning, taught with this one: 12 lessons with exercises."""
