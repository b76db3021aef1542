"""Every INSERT, UPDATE and DELETE, as functions that take a session and never commit.

chimeras     rows of chimeras: recipe, findings, lineage, how organs were computed, and verdicts
blobs        rows of blobs and of the ingests that lease them: written when the bytes are durable
models       a model with all that belongs to it, in one transaction
facets       facet counts over visible placements and running totals
jobs         the life of a job: asked for, taken up by a runner, kept alive, ended
accounts     contributors with accounts, their tokens, and the sessions of their browsers
editing      what is said of a model is changed by its owner
events       the event log and the contributors that it names
organs       organs with their measurements and fingerprints
relatives    edges between models: measured ones, and where declared ones lead
states       what becomes of a model after it was registered: shown, hidden, removed
submissions  rows of uploads and submissions
"""
