"""Every SELECT, as a named function that takes a session.

models          models: one by name, with files
organs          organs: one by digest, many with their places, those of a model in pages
search          search: from a query to a page of organs or models, ranked also by likeness
planning        plan a search: narrow its query to facets and models
relatives       what relatives are found by
reports         what reports and dissections are made of
composing       what composing reads: the tensors of a model, what decides whether they fit
chimeras        chimeras: in pages, by lock, and by use; scores of files, and verdicts
jobs            jobs: one by its id, the newest in pages, whether there is anything to do
accounts        contributors, their tokens and sessions, what each has here, and their quotas
administration  what administrators see
events          the event log: who did what, newest first
submissions     uploads and submissions
"""
