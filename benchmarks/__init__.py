"""Benchmarks that compare the product's speed with its goals: ``manage.py bench``.

Each group of measurements is a module with a ``measure`` function. A group uses real servers as a
browser does, from another process, on temporary data. It returns a list of figures with their
goals. The provider is the local server in :mod:`tests.wire`, which records when it has sent each
piece of an answer.

The product does not import this package.
"""
