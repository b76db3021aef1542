"""Tests of the query language, and helpers for tests of searches."""
