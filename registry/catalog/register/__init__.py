"""Every INSERT, UPDATE and DELETE, as functions that take a session and never commit.

chimeras     rows of chimeras: recipe, findings, lineage, how organs were computed, and verdicts
models       register a model with everything that belongs to it in one transaction
facets       facet counts over visible placements and running totals
jobs         the life of a job: asked for, taken up by a runner, kept alive, ended
accounts     contributors with accounts, their tokens, and the sessions of their browsers
events       the event log and the contributors that it names
organs       rows of blobs, of the ingests that lease them
submissions  rows of uploads and submissions
"""
