"""A remote registry, over HTTP.

    address      the address of a remote registry, and its names as parts of URLs and of paths
    connection   requests to one remote registry
    tokens       the tokens for remote registries
    composition  compose in a remote registry: plans and jobs run on the server; the file is downloaded
    evolutions   evolutions in a remote registry: the request with the user's texts
    remote       `RemoteRegistry`: a registry on a server
    fetching     download a file, or only its header
    ranges       read parts of a file at any http(s) address or in an object store, in parallel
    files        downloaded files of models: checked, cut into shards, or assembled from the parts of a lock

`Connection` does not know about models; `composition`, `remote`, `fetching` and `files` do.
"""
