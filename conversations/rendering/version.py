"""The version of the HTML that the renderers of this package produce."""

RENDER_VERSION: int = 5
"""Raise this when the HTML for the same input changes.

Rendered rows are stored beside their source with the version that made them;
a row with another version is rendered again when it is next read.
"""
