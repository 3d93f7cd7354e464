"""Tests that the drop-in cannot pass because they look at the bytes of Spark's checkpoint: at most four.

docs/porting.md has the same list.
"""

EXCLUDED: dict[str, str] = {}
"""From the name of a test, ``<module>.<method>``, to the reason."""
