"""Rendering of rows as HTML, the same for streamed, stored and reloaded rows."""
