"""Every INSERT, UPDATE and DELETE, as functions that take a session and never commit.

models          register a model, or a shard of one, with all of its rows in one transaction
card_images     give images to cards, and drop those that a card does not name
model_changes   show, hide, withdraw, remove, rename and edit a registered model
lineage         edges of lineage that were measured, and those whose parent was found
organs          rows of blobs, of ingests with their leases, and of organs with their measures
counts          counts: visible placements by facet, running totals, downloads, and requests of all servers
chimeras        rows of chimeras: recipe, findings, lineage, how organs were computed, verdicts and gains
sizes           rows of sizes and of sensitivities
jobs            rows of jobs: added within limits, claimed by kind, cancelled, removed
fleet           the ledger of fleets: runs and their units
accounts        contributors with accounts, their tokens, and the sessions of their browsers
events          the event log
submissions     rows of submissions and of uploads, and whether a contributor may open another upload
"""
