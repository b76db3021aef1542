"""Work on many models or shards with many processes, on one machine or on many.

    plan       a TOML file becomes units of work
    worker     a process that does units: it claims one in the ledger, does it, and records its result
    driver     the processes that start workers, and wait until the ledger has no open unit

The ledger (`registry.catalog.register.fleet`) is the only truth, so drivers and schedulers may be killed at any time.
"""
