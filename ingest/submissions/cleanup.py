"""Remove uploads that no open submission needs any more."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.ingest.submissions.manifest import Manifest
from organs.ingest.submissions.serialize import manifest_of
from organs.ingest.uploads.tidying import forget_uploads
from organs.registry.catalog.queries.submissions import UNDER_WAY, open_submissions
from organs.registry.catalog.queries.uploads import pieces_of_upload
from organs.registry.catalog.register.submissions import hold_contributor
from organs.registry.catalog.register.uploads import remove_upload
from organs.registry.catalog.tables import Upload
from organs.registry.digest import Digest
from organs.registry.registry import Registry


def remove_uploads_of(registry: Registry, contributor_id: int, manifest: Manifest) -> int:
    """Remove the uploads of a submission that has ended, except those that another open submission of the same
    contributor needs. Return how many were removed.
    """
    digests: set[Digest] = set()
    uploads: set[str] = set()
    with registry.catalog.reading() as session:
        others = open_submissions(session, contributor_id, UNDER_WAY)
        newest_id = max((other.id for other in others), default=0)
        for other in others:
            needed = manifest_of(other)
            digests |= needed.digests()
            uploads |= needed.uploads()

    def remove(session: Session, upload_id: int) -> bool:
        return not _is_needed(session, contributor_id, upload_id, newest_id) and remove_upload(session, upload_id)

    return forget_uploads(registry, contributor_id, manifest.digests() - digests, manifest.uploads() - uploads, remove)


def _is_needed(session: Session, contributor_id: int, upload_id: int, newest_id: int) -> bool:
    """Return whether a submission that was added after `newest_id` needs the upload.

    The contributor's row is locked, so that no submission is added before the transaction ends.
    """
    upload = session.get(Upload, upload_id)
    hold_contributor(session, contributor_id)
    later = [manifest_of(one) for one in open_submissions(session, contributor_id, UNDER_WAY, newest_id)]
    if upload is None or not later:
        return False
    stored = {digest for _, _, digest in pieces_of_upload(session, upload_id)}
    return any(upload.public_id in one.uploads() or stored & one.digests() for one in later)
