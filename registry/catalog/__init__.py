"""The SQL of the registry.

    vocabulary  the words that columns may hold, the actions of the event log, the bins of θ
    tables      the tables, with everything that must hold as a constraint
    engine      engines and sessions: how the catalog is read, written and copied
    memory      what readers remember of a catalog until it changes
    records     values that ingest and composing hand to `register`
    queries     every SELECT, as a named function that takes a session
    register    every INSERT, UPDATE and DELETE, as functions that take a session and never commit
    search      the query language: its fields, its parser, and queries as values
    cursor      where a page ended: the last row's sort value and id, bound to its query

The caller owns the transaction: functions here take a session and never commit.
"""
