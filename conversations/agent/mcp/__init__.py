"""Tools of other programs, by the Model Context Protocol.

``config`` says which servers there are; ``servers`` looks after the connections to them, hands
out their tools and makes results of what a call gives; ``connection`` is one of those, opened again
when it breaks, with what the server lists; ``session`` is the only module that knows the SDK, which
is loaded when a server is configured; ``program`` runs a server of this machine.

What a server says is somebody else's words: names, schemas, sizes and contents are checked here,
before they reach the model's request or the archive.
"""
