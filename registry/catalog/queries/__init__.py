"""Every SELECT, as a named function that takes a session.

models          models by name or digest, with their files and versions
organs          organs by digest, by model, and in one cell of several models; blobs
search          search: from a query to a page of organs or models, also ranked by likeness
search_plan     the plan of a search: the query narrowed to facets and models, and the index that is used
fitting         `fits:`: the organs and models that fit a base
relatives       organs with fingerprints, and edges of lineage
reports         the rows of reports and dissections
chimeras        chimeras by page, by lock and by source; computations, scores and verdicts
gains           what validated chimeras gained: by organ, by model, and the leaderboard
jobs            jobs by id and by page, and whether a job waits
fleet           runs of fleets with their progress, and units that wait
accounts        accounts, their tokens and sessions, what each has stored, and their quotas
administration  what administrators see
events          the event log, newest first
submissions     uploads and submissions
"""
