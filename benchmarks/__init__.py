"""How fast the product is, against what it promises: ``manage.py bench``.

Each group of measurements is one module with a ``measure`` function. A group drives
real servers as a browser does, from another process, on throw-away data; what it
finds is a list of figures, each with its target. The provider is the local server
in :mod:`tests.wire`, which records when every piece of an answer left it.

Nothing of the product imports this package.
"""
