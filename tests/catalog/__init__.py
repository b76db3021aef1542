"""The catalog: schema, constraints, sessions, queries."""
