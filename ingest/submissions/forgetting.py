"""Uploads that nothing is made of any more: their model is in the store, or will not be."""

from __future__ import annotations

from ingest.submissions.keeping import kept_manifest
from ingest.uploads.tidying import forget_uploads
from registry.catalog.queries.submissions import UNDER_WAY, open_submissions, submission_by_id
from registry.digest import Digest
from registry.registry import Registry


def forget_bytes(registry: Registry, submission_id: int) -> int:
    """Remove the uploads that a submission was made of, but for what others of its contributor still need; how many."""
    with registry.catalog.reading() as session:
        row = submission_by_id(session, submission_id).row
        contributor_id, manifest = row.contributor_id, kept_manifest(row)
        digests: set[Digest] = set()
        uploads: set[str] = set()
        for other in open_submissions(session, contributor_id, UNDER_WAY):
            if other.id != submission_id:
                needed = kept_manifest(other)
                digests |= needed.digests()
                uploads |= needed.uploads()
    return forget_uploads(registry, contributor_id, manifest.digests() - digests, manifest.uploads() - uploads)
