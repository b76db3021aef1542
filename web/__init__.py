"""The catalog in a browser: pages over `registry.present`, each with a JSON twin at the same address.

app      create_app: wires blueprints and headers, nothing happens at import
pages    home, model, organ
health   for whoever watches the process
"""
