"""Django's SQLite, with connections that outlast the request that opened them."""
