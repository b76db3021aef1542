"""The endpoints of the API: one declaration for the server's route, the OpenAPI document and the client's call.

- `declaration`: how an endpoint is declared and called
- `parameters`: types of parameters that several endpoints have
- `about`, `organs`, `models`, `chimeras`, `evolutions`, `reports`, `uploads`, `submissions`, `accounts`,
  `administration`, `jobs`, `downloads`: the endpoints by subject
- `table`: all of them
"""
