"""What commands show of a registry elsewhere, as the same values that a folder gives. HTTP is loaded late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from organs.registry.digest import looks_like_prefix
from organs.registry.errors import BadName, NotFound
from organs.registry.present.values import Values

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.entities.organ import Organ
    from organs.registry.entities.verdict import VerdictReport

DIGEST = "sha256:"


def values_there(remote: RemoteRegistry, what: str, versions_shown: int) -> Organ | Values:
    """A model, with its organs, or an organ: whichever `what` means, as for a registry in a folder."""
    from organs.registry.client.address import told_name
    from organs.registry.client.shown import shown_versions

    if what.startswith(DIGEST):
        try:
            return remote.organ(what)
        except NotFound:
            values = remote.model_values(what)
    else:
        try:
            values = remote.model_values(what)
        except (BadName, NotFound):
            if not looks_like_prefix(what):
                raise
            return remote.organ(what)
    composed = values["composed"]
    chimera = None if composed is None else remote.chimera(composed["lock_id"])
    name = told_name(values["name"])
    since = shown_versions(remote.connection, name, versions_shown)
    return {**values, "organs": remote.organs_of(name), **since, "chimera": chimera}


def validated_there(remote: RemoteRegistry, chimera: str, tokens: int, say: Callable[[str], None]) -> VerdictReport:
    """Return the verdict on a chimera that is run there; `say` is called with what is done."""
    from organs.registry.client.shown import validated

    return validated(remote.connection, chimera, tokens, lambda share, note: say(f"{share:.0%} {note}"))
