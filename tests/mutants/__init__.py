"""Planted bugs: small patches to a copy of the package, each with tests that must fail on it. See ``python -m tests.mutants``."""
