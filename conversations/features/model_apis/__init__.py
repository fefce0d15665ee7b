"""APIs compatible with Anthropic's and OpenAI's, whose clients can use sessions of a workspace.

The base URL for a client is ``/api/v1/anthropic/<workspace>`` or ``/api/v1/openai/<workspace>/v1``,
and its API key is a personal token. The client's messages are ordinary messages of a session. The
answers have the form of the client's API.
"""
