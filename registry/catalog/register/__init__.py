"""Every INSERT, UPDATE and DELETE, as functions that take a session and never commit.

chimeras     rows of chimeras: recipe, findings, lineage, how organs were computed, verdicts and gains
models       register a model with all of its rows in one transaction; show, hide, edit and remove it
facets       counts of visible placements by facet, and running totals
jobs         rows of jobs: added within limits, claimed by kind, cancelled, removed
fleet        the ledger of fleets: runs and their units
accounts     contributors with accounts, their tokens, and the sessions of their browsers
events       the event log
organs       rows of blobs, of ingests with their leases, and of organs with their measures
submissions  rows of submissions
uploads      rows of uploads, and whether a contributor may open another one
"""
