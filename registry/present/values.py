"""The shape of everything that is shown."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]
"""Plain values by name: what JSON takes."""
