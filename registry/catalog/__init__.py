"""The SQL of the registry.

    vocabulary   words that columns may hold; text that every database takes
    tables       the tables and their constraints
    engine       engines, sessions, the schema brought up to date
    memory       what was counted, kept until the next commit
    limits       queries that are stopped when their time is over
    records      values that go in, checked before they do
    queries      every SELECT, a named function each
    register     every INSERT, UPDATE and DELETE

The caller owns the transaction: functions here take a session and never commit.
"""
