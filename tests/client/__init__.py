"""Tests of the client: a registry elsewhere, asked from here."""
