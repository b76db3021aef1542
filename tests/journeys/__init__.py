"""Tests of complete workflows."""
