"""The SQL of the registry.

    vocabulary  the words that columns may hold, the actions of the event log, the bins of θ
    tables      the tables
    engine      engines and sessions: one way to read, one way to write, limits on queries
    memory      what readers remember of a catalog until it changes
    records     values that ingest and composing hand to `register`
    queries     every SELECT, as a named function that takes a session
    register    every INSERT, UPDATE and DELETE, as functions that take a session and never commit
    clock       the time that rows carry
    search      the query language: one grammar and one parser for the search box, the command
    upsert      inserts that give way to a row that is there already

The caller owns the transaction: functions here take a session and never commit.
"""
