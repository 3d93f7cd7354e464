"""The messages of all errors that these tests bring about are looked at."""

from tests.messages import messages

__all__ = ["messages"]
