from tests.wire.fixtures import wire

__all__ = ["wire"]
