"""What goes wrong with a server."""


class McpError(Exception):
    """The text is a sentence for people and for the model."""


class ServerFailed(McpError):
    """The connection cannot be made, or is no more."""


class CallRefused(McpError):
    """The server answers this request with an error; the connection holds."""
