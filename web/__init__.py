"""The web server: pages for people, an API for programs, and downloads.

app             `create_app`: the Flask application over one open registry
settings        settings of the application and of its server

pages           the pages, one module for each subject; each has a JSON twin
api             the API below `/api/v1` and its OpenAPI document; pages call its functions
charts          charts as SVG
downloads       downloads: organs in three forms, models, files of chimeras and jobs
repositories    models as the repositories that other programs know
hub             the read-only routes of the Hugging Face hub
ollama          the protocol of container registries as Ollama uses it
health          the health of the server, for administrators
metrics         `/metrics` for Prometheus, and `/healthz`
logs            the log as text or lines of JSON, and the newest errors of a process

auth            the user of a request: by token in the API, by session on pages
permissions     what the user may write, and what the owner of a model may do with it
params          parameters of addresses: their descriptions, and how they are read and checked
responses       answers as JSON, conditional requests, and links within the catalog
file_responses  files and ranges of files (RFC 9110); each blob is checked while it is sent
error_pages     errors as problem documents, plain text or pages
render          numbers as text, colours and classes; descriptions as safe HTML
answer_cache    a cache of answers in memory, valid until the catalog changes
rate_limits     request rates, and how many requests compute at the same time
client_address  addresses of clients, with or without proxies
security        checks of every request and headers of every answer

server          the HTTP server: processes of gunicorn, event loop, connections
"""
