"""The APIs of models as an entry: clients that were written for them hold sessions here.

The address of a client is ``/api/v1/anthropic/<workspace>`` or ``/api/v1/openai/<workspace>/v1``,
its key a personal token. What it sends is a message of a session like any other; the answer
has the shapes that it knows.
"""
