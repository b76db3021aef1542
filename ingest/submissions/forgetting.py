"""Uploads that nothing is made of any more: their model is in the store, or will not be."""

from __future__ import annotations

from ingest.submissions.keeping import kept_manifest
from ingest.submissions.manifest import Manifest
from ingest.uploads.tidying import forget_uploads
from registry.catalog.queries.submissions import UNDER_WAY, open_submissions
from registry.digest import Digest
from registry.registry import Registry


def forget_bytes(registry: Registry, contributor_id: int, manifest: Manifest) -> int:
    """Remove the uploads that a submission was made of that has ended, but for what others of its contributor still
    need; how many.
    """
    with registry.catalog.reading() as session:
        digests: set[Digest] = set()
        uploads: set[str] = set()
        for other in open_submissions(session, contributor_id, UNDER_WAY):
            needed = kept_manifest(other)
            digests |= needed.digests()
            uploads |= needed.uploads()
    return forget_uploads(registry, contributor_id, manifest.digests() - digests, manifest.uploads() - uploads)
