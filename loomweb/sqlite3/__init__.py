"""Django's SQLite, with connections that outlast the request that opened them and writers that
stand in line."""
