"""Uploads that nothing is made of any more: their model is in the store, or will not be."""

from __future__ import annotations

from sqlalchemy.orm import Session

from ingest.submissions.keeping import kept_manifest
from ingest.submissions.manifest import Manifest
from ingest.uploads.tidying import forget_uploads
from registry.catalog.queries.submissions import UNDER_WAY, open_submissions
from registry.catalog.queries.uploads import pieces_of_upload
from registry.catalog.register.submissions import hold_contributor
from registry.catalog.register.uploads import remove_upload
from registry.catalog.tables import Upload
from registry.digest import Digest
from registry.registry import Registry


def forget_bytes(registry: Registry, contributor_id: int, manifest: Manifest) -> int:
    """Remove the uploads that a submission was made of that has ended, but for what others of its contributor still
    need; how many.
    """
    digests: set[Digest] = set()
    uploads: set[str] = set()
    with registry.catalog.reading() as session:
        others = open_submissions(session, contributor_id, UNDER_WAY)
        newest_id = max((other.id for other in others), default=0)
        for other in others:
            needed = kept_manifest(other)
            digests |= needed.digests()
            uploads |= needed.uploads()

    def remove(session: Session, upload_id: int) -> bool:
        return not _is_needed(session, contributor_id, upload_id, newest_id) and remove_upload(session, upload_id)

    return forget_uploads(registry, contributor_id, manifest.digests() - digests, manifest.uploads() - uploads, remove)


def _is_needed(session: Session, contributor_id: int, upload_id: int, newest_id: int) -> bool:
    """Whether a submission that came after `newest_id` needs the upload. None comes until the transaction ends."""
    upload = session.get(Upload, upload_id)
    hold_contributor(session, contributor_id)
    later = [kept_manifest(one) for one in open_submissions(session, contributor_id, UNDER_WAY, newest_id)]
    if upload is None or not later:
        return False
    has = {digest for _, _, digest in pieces_of_upload(session, upload_id)}
    return any(upload.public_id in one.uploads() or has & one.digests() for one in later)
