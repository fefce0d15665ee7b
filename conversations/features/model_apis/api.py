"""The operations of the protocols."""

from .anthropic_api import router

__all__ = ["router"]
