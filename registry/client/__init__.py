"""A remote registry, over HTTP.

    address     the address of a remote registry, and its names as parts of URLs and of paths
    connection  requests to one remote registry
    tokens      the tokens for remote registries
    shape       the shapes of answers, which are checked before they are used
    composing   compose in a remote registry: plans and jobs run there; the file is fetched
    remote      `RemoteRegistry`: a registry on a server
    answers     answers as the values that scripts get from any registry
    fetching    fetch a file, or only its header
    files       files of models, downloaded: checked, cut into shards, or assembled from the parts of a lock

`Connection` knows nothing of models; the modules above it do.
"""
