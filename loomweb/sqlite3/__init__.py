"""Django's SQLite backend with connections that are reused and writers that queue."""
