"""Work on many models or shards with many processes, on one machine or on many.

    plan       a TOML file becomes units of work
    worker     a process that does units: it claims one in the ledger, does it, and records its result
    drivers    the processes that start workers, and wait until the ledger has no open unit

The ledger (`registry.catalog.register.fleet`) is the only truth: drivers and schedulers may be killed and started again.
"""
