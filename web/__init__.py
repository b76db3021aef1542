"""The catalog in a browser: pages over `registry.present`, each with a JSON twin; an API; downloads.

app             `create_app`: the Flask application over one open registry
settings        settings of the catalog in a browser and of its server
errors          errors as answers: problem documents for programs, text beside lists as CSV
security        checks of every request and headers of every answer
forms           forms of pages that write
concurrency     limits on what one process does at once
memory          answers that are kept in memory until the catalog changes
pages           the pages, one file each
charts          charts as SVG, made on the server: numbers in, bytes out
api             the API below `/api/v1`
downloads       downloads: organs in three forms, models as files or as one file
streams         downloads: files or ranges of them (RFC 9110), each blob checked while it is sent
hub             the Hugging Face hub's routes, read-only
metrics         figures of the server for Prometheus at `/metrics`, and its health at `/healthz`
server          the catalog behind gunicorn
worker          the process of a server that answers requests
connection      HTTP/1.1 over one connection, in the event loop of a worker
gateway         from a parsed request to the WSGI application and back
accounts        the account of the token or session that is sent, and its tokens
administration  what administrators do
auth            who asks
params          what an address asks for, checked
permissions     who may write, what the owner of a model may do with it
planning        planning for a client of the server
rates           request rates: how often an address or a contributor may ask
render          how numbers become text, colours and classes, and descriptions become harmless HTML
responses       responses: pages as HTML, lists as CSV, entities as JSON; and links within the catalog
contributions   uploads and submissions, for pages and the API
"""
