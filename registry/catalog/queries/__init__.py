"""Every SELECT, as a named function that takes a session.

models          models by name or digest, with their files and versions
organs          organs by digest, by model, and in one cell of several models; blobs
relatives       organs with fingerprints, and edges of lineage
reports         the rows of reports and dissections
chimeras        chimeras by page, by lock and by source; computations, scores and verdicts
jobs            jobs by id and by page, and whether a job waits
fleet           runs of fleets with their progress, and units that wait
accounts        accounts, their tokens and sessions, what each has stored, and their quotas
administration  what administrators see
events          the event log, newest first
submissions     uploads and submissions
"""
