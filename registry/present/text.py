"""Numbers as people read them, for those who show rows; the values below rows say theirs in the same words."""

from __future__ import annotations

from organs.registry.amounts import count_text as count_text
from organs.registry.amounts import share_text as share_text
from organs.registry.amounts import size_text as size_text
from organs.registry.amounts import theta_text as theta_text
