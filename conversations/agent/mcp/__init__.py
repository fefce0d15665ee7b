"""Tools of other programs, by the Model Context Protocol.

``config`` reads the configuration of the servers. ``servers`` manages the connections to them,
provides their tools, and converts the results of calls. ``connection`` holds one connection, which
is opened again when it breaks, and the lists of its server. ``session`` and ``oauth`` are the only
modules that use the SDK, which is loaded when there is a server to connect to. ``program`` runs a
server on this machine.

Data from a server is not trusted. Names, schemas, sizes and contents are checked here, before they
reach the model's request or the archive.
"""
