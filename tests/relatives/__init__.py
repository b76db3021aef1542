"""Tests of relatives and lineage."""
