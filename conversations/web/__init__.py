"""Pages and the socket: parse a request, authorise it, call one function, render the result."""
