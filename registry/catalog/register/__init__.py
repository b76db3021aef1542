"""Every INSERT, UPDATE and DELETE, as functions that take a session and never commit.

contributors  who adds models
ingests       the life of one dissection: begun, kept alive, ended
verdicts      what runtimes said of files and chimeras
chimeras      what is known of a model because it was composed here
blobs         rows of durable bytes, leased; what the sweep and verify change
models        a model with its organs, placements, files and lineage, all at once
facets        the roll-up of counts
jobs          the life of a job
"""
