"""Nexmark, the benchmark of an online auction: a generator, the queries with the public API, and their answers in SQL."""
