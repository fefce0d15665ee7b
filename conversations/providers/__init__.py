"""Where model calls go: one module for each kind of provider.

A provider turns a :class:`~conversations.domain.stream.ModelRequest` into a stream of items (see
:mod:`conversations.domain.stream`). Nothing here imports Django, and nothing imports the provider's
SDK before the first call, since that costs a second and more.
"""
