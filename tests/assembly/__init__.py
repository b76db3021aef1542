"""Tests of assembling files from plans."""
