"""Elastic, tiered, versioned state for PySpark streams."""
