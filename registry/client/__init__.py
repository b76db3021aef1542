"""A registry elsewhere, over HTTP.

    address      where it is: an origin and a path, and who may be sent a token
    refusals     answers that say no, as the errors of `registry.errors`
    connection   `Connection`: requests with timeouts, bounds and retries; a token that goes nowhere else
    tokens       the tokens that `organ login` keeps
    shape        what answers must look like
    names        names from elsewhere as parts of addresses and paths
    partial, fetching, checking    a file onto the disk: gone on with, whole or not at all, and what it holds
    heads, cutting    the header of a file that is elsewhere; a file that comes, cut into shards
    jobs         what is asked for, waited for, told
    answers, planned    answers as the values that scripts get of any registry
    compared, reported    two models side by side; reports, as the documents that a folder gives
    composing    recipes that are planned and made there
    remote       `RemoteRegistry`, with the interface of `Registry`
    locked       the file of a lock, of the organs that are there

`Connection` knows nothing of models: what stands on it does.
"""
