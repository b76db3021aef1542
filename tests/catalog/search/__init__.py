"""The query language, and what the tests of searches share."""
