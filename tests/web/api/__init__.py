"""The API below `/api/v1`."""
