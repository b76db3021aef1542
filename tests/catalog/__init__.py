"""Tests of the catalog: schema, constraints, sessions, queries."""
