"""A chat in a terminal or a pipe. :mod:`connection` says what it needs of the place where
the sessions are; :mod:`direct` is the data folder, :mod:`remote` a running server."""
