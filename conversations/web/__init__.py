"""Pages and the socket: parse, authorise, call one function, render."""
