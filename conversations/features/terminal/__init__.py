"""A chat in a terminal or a pipe.

:mod:`connection` has the interface to the sessions. :mod:`direct` implements it with the data
folder, :mod:`remote` with the API of a running server."""
