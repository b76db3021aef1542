"""Every SELECT, as a named function that takes a session.

model_names     which model a name, a text or a digest means
card_images     images of the cards of models
model_lists     models as lines of lists: rankings, versions, descendants, quantisations, repositories
model_contents  files, tensors, header and texts of a model, and sums over its types
blobs           blobs by digest and by id, the blobs that they need, and what uses them
organs          organs by digest, by model, and in one cell of several models
relatives       organs with fingerprints, and edges of lineage
reports         the rows of reports and dissections; totals
storage         how organs are stored: sums by encoding, by model and by group of models
chimeras        chimeras by page, by lock and by source; computations, scores and verdicts
sizes           the measured sizes of a model, and the sensitivities of its groups of organs
jobs            jobs by id and by page, and whether a job waits
fleet           runs of fleets with their progress, and units that wait
accounts        accounts, their tokens and sessions, what each has stored, and their quotas
administration  what administrators see, with the queue, the intake and the database in numbers
events          the event log, newest first
submissions     uploads and submissions
"""
