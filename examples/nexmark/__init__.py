"""Nexmark, the benchmark of an online auction: an event generator, the queries in the public API, and their answers in SQL."""
