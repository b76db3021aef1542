"""The database of the registry. All SQL is in this package.

    vocabulary  the values that columns may have, the actions of the event log, the bins of θ
    tables      the tables with their constraints
    engine      engines and sessions: how the catalog is read and written, with limits on queries
    copying     snapshots, and copies of all rows to another database
    slow        slow statements: noticed, logged and kept in memory
    work        the queue under jobs and units of fleets: claim, renew, finish, fail, put back, recover; named leases
    cache       values computed from the catalog, valid until it changes
    records     values that ingest and compose pass to `register`
    rows        rows: read in batches and by page, counted, inserted, and turned into entities
    queries     every SELECT, as functions that take a session
    register    every INSERT, UPDATE and DELETE, as functions that take a session and never commit
    cursor      the position in a list after a page: the sort value and id of its last row

The caller owns the transaction: functions here take a session and never commit.
"""
