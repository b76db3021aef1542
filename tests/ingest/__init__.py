"""Tests of ingests, submissions, uploads and jobs."""
