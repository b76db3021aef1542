"""What commands show of a registry elsewhere, as the same values that a folder gives. HTTP is loaded late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from organs.registry.digest import looks_like_prefix
from organs.registry.errors import BadName, NotFound
from organs.registry.present.values import Values

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.entities.organ import Organ

DIGEST = "sha256:"


def values_there(remote: RemoteRegistry, what: str, versions_shown: int) -> Organ | Values:
    """A model, with its organs, or an organ: whichever `what` means, as for a registry in a folder."""
    from organs.registry.client.address import parse_full_name

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
    name = parse_full_name(values["name"])
    since = remote.versions(str(name), limit=versions_shown)
    return {
        **values,
        "organs": remote.organs_of(str(name)),
        "versions": since.items,
        "versions_left_out": since.left_out,
        "chimera": chimera,
    }
