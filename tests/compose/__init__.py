"""Tests of recipes, findings and chimeras."""
