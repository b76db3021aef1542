"""What a registry stores how, and what this saves: totals, families and models by stored size, encodings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import check_limit
from organs.registry.catalog.queries.model_lists import composed_among
from organs.registry.catalog.queries.model_names import models_in_any_state
from organs.registry.catalog.queries.outside import run_files_bytes
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.queries.storage import (
    ModelSizes,
    SizesByModel,
    sizes_by_model,
    sizes_of_models,
    stored_encodings,
)
from organs.registry.entities.storage import (
    ROWS_DEFAULT,
    ROWS_MAX,
    Storage,
    StoredFamily,
    StoredModel,
    StoredSizes,
)
from organs.registry.names import family_name
from organs.registry.relatives.families import listed_families

MEMBERS_READ = 200
"""Members of a family from which its name is made."""


def storage(session: Session, limit: int = ROWS_DEFAULT) -> Storage:
    """Return what the registry stores how, with at most `limit` families and models. Raises BadQuery."""
    check_limit(limit, ROWS_MAX)
    sizes = cached(session, "stored models", lambda: sizes_by_model(session))
    encodings = cached(session, "stored encodings", lambda: stored_encodings(session))
    families = listed_families(session)
    shown = cached(session, ("stored families", limit), lambda: _largest_families(session, families, sizes, limit))
    by_size = sorted(sizes.models, key=lambda model_id: (-sizes.models[model_id].stored.stored_bytes, model_id))
    rows = models_in_any_state(session, by_size[:limit])
    files = sum(model.files_bytes for model in sizes.models.values())
    plain = sum(row.size_bytes for row in encodings)
    stored = sum(row.stored_bytes for row in encodings)
    compression = max(0, sizes.alone_saved_bytes)  # tiny organs need more bytes on the disk than plain
    return Storage(
        parts=sum(row.parts for row in encodings),
        size_bytes=plain,
        stored_bytes=stored,
        saved_bytes=max(0, plain - stored),
        models_count=len(sizes.models),
        files_bytes=files,
        once_bytes=max(0, files - sizes.plain_bytes),
        compression_bytes=compression,
        parents_bytes=max(0, sizes.plain_bytes - (sizes.needed_bytes - sizes.kept_bytes) - compression),
        needed_bytes=sizes.needed_bytes,
        kept_bytes=sizes.kept_bytes,
        unneeded_bytes=max(0, stored - sizes.needed_bytes),
        run_files_bytes=run_files_bytes(session),
        families=shown,
        families_left_out=max(0, len(families) - len(shown)),
        models=tuple(
            StoredModel(
                name=rows[model_id].full_name,
                state=rows[model_id].state,
                files_bytes=sizes.models[model_id].files_bytes,
                own_bytes=sizes.models[model_id].own_bytes,
                **asdict(sizes.models[model_id].stored),
            )
            for model_id in by_size[:limit]
        ),
        models_left_out=max(0, len(by_size) - limit),
        encodings=tuple(encodings),
    )


def _largest_families(
    session: Session, families: Sequence[tuple[int, ...]], sizes: SizesByModel, limit: int
) -> tuple[StoredFamily, ...]:
    """Return the `limit` families with the largest stored sizes.

    No family stores more than the sum over its models, so the families with the smallest sums need not be read.
    """
    bounds = {family: sum(size.stored.stored_bytes for size in _members(sizes.models, family)) for family in families}
    found: list[tuple[int, tuple[int, ...], StoredSizes]] = []
    for family in sorted(families, key=lambda family: (-bounds[family], family)):
        if len(found) == limit and found[-1][0] >= bounds[family]:
            break
        size = sizes_of_models(session, family)
        found.append((size.stored_bytes, family, size))
        found = sorted(found, key=lambda entry: (-entry[0], entry[1]))[:limit]
    return tuple(_family(session, family, sizes, size) for _, family, size in found)


def _members(models: Mapping[int, ModelSizes], family: Sequence[int]) -> list[ModelSizes]:
    return [models[model_id] for model_id in family if model_id in models]


def _family(session: Session, family: Sequence[int], sizes: SizesByModel, size: StoredSizes) -> StoredFamily:
    first = list(models_by_id(session, family[:MEMBERS_READ]).values())
    composed = composed_among(session, [model.id for model in first])
    named = [model for model in first if model.id not in composed] or first
    return StoredFamily(
        name=family_name([model.stem for model in named]),
        member=named[0].full_name,
        models=len(family),
        files_bytes=sum(member.files_bytes for member in _members(sizes.models, family)),
        **asdict(size),
    )
