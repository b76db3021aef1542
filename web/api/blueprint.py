"""The blueprint of the API."""

from __future__ import annotations

from flask import Blueprint

ROOT = "/api/v1"

api = Blueprint("api", __name__)
