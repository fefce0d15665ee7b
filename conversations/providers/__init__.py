"""Providers, which answer model calls: one module for each kind of provider.

A provider turns a :class:`~conversations.domain.stream.ModelRequest` into a stream of items (see
:mod:`conversations.domain.stream`). This package does not import Django, and imports a provider's
SDK only for the first call, because that import takes a second and more.
"""
