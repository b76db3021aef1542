"""Every SELECT, as a named function that takes a session.

blobs           where bytes are stored, and which of them anybody needs
models          models by name or digest, with their files, parts and placements
organs          organs by digest, one or many, with measurements and places
search          search: a query to a page of organs or models, ranked also by likeness
narrow          a query's terms against what is registered
fitting         what fits a base: as a condition on placements for `fits:`
planning        by which index a query is answered, from counts and bounds of what it would read
ranking         a page of placements, and how all that match are spread: the rows, come by as planned
relatives       what relatives are found by
reports         what reports and dissections are made of
composing       what composing reads: tensors of a model with all that decides whether they fit
chimeras        chimeras: in pages, by lock, and by use; scores of files, and verdicts
jobs            jobs: one by its id, the newest in pages, whether there is anything to do
accounts        contributors, their tokens and sessions, what each has here, and their quotas
administration  what administrators look at
events          the event log: who did what, newest first
facets          the counts of facets by bins of θ, held in memory
published       published models: versions, whose chimeras have their organs
removing        what goes with a model that is removed, and what stays because others need it
shared_organs   organs that models have in common
submissions     uploads and submissions
"""
