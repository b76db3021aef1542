"""The catalog in a browser: pages over `registry.present`, each with a JSON twin; an API; downloads.

app           create_app: wires blueprints and limits, nothing happens at import
settings      what a server can be told
answers       a page as HTML, JSON or CSV; conditional requests
errors        what goes wrong, as an answer
asked         what an address asks for, checked
links         addresses within the catalog, and what may be a link to elsewhere
security      names that are served, sizes, headers
writing       who may write
forms         forms of pages that write
concurrency   limits of a process: turns of pages, threads, downloads, what one address may have in progress
memory        answers that are kept until the catalog changes
shown         numbers as text and as classes of the stylesheet
scales        the colours
pages         the pages, one file each
charts        pictures, numbers in and SVG out
api           the API for programs, and the document that describes it
made          what was made here as files: texts of chimeras, what jobs leave
downloads     organs and models as files:
  contents      rows to what can be handed out
  streams       bytes on their way out, each blob checked
  ranges        which bytes are asked for
  filenames     the names that downloads have
hub           the routes that clients of the Hugging Face hub ask
  repositories  models as their repositories
health        for whoever watches the process
metrics       for Prometheus
server        gunicorn with our settings
  worker        a process that answers requests: an event loop, and threads that compute
  connection    HTTP/1.1 over one connection, in the event loop
  gateway       from a parsed request to the WSGI application and back
  runner        the process beside them that works at jobs
"""
