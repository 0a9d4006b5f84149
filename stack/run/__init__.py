"""compile() and trace(), the record of a run, executables and the cache."""
