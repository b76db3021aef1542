"""The blueprint of all pages."""

from __future__ import annotations

from flask import Blueprint

pages = Blueprint("pages", __name__)
