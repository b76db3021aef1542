"""A faulty blob never goes out: told in words before the first byte, cut off after it, set aside either way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore
from organs.registry.store.files import Files
from organs.web.app import create_app
from tests.assembly.test_stream import flip_first, flip_last, flip_middle, largest_file, open_blobs
from tests.web.test_downloads import LARGE_FROM, WHOLE, Served, served

__all__ = ["served"]


def state_of(served: Served, tensor: str = LARGE_FROM) -> str:
    """Return the state of the blob of an organ in the catalog."""
    digest = served.digest_of(tensor)
    with served.registry.catalog.reading() as session:
        return next(iter(blobs_by_digest(session, [digest]).values())).state


def received(served: Served, address: str, status: int = 200, **headers: str) -> tuple[bytes, bool]:
    """What came of an answer, and whether it was cut off."""
    answer = served.client.get(address, headers=headers)
    assert answer.status_code == status
    return body_of(answer)


def body_of(answer: TestResponse) -> tuple[bytes, bool]:
    """What comes of an answer, and whether it is cut off."""
    body = bytearray()
    try:
        for piece in answer.iter_encoded():
            body += piece
    except ConnectionResetError:
        return bytes(body), True
    finally:
        answer.close()
    return bytes(body), False


@pytest.mark.folder
@pytest.mark.parametrize("damage", [flip_first, flip_middle, flip_last, Path.unlink])
def test_a_corrupt_blob_cuts_the_answer_off_and_is_set_aside(damage: Callable[[Path], None], served: Served) -> None:
    """Also one whose file is missing."""
    damage(largest_file(served.registry))
    body, cut = received(served, WHOLE[0])
    assert cut
    assert len(body) < len(served.data)
    assert body == served.data[: len(body)], "what went out before is right"
    assert state_of(served) == "corrupt"
    assert open_blobs(served.registry) == []
    for address in WHOLE:
        again = served.client.get(address)
        assert again.status_code == 500
        assert LARGE_FROM in again.text
        assert again.headers["Cache-Control"] == "no-store"
        assert served.client.head(address).status_code == 500


@pytest.mark.folder
@pytest.mark.parametrize("form", ["raw", "npy", "bin"])
def test_a_corrupt_organ_is_cut_off_and_set_aside(form: str, served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    whole = served.client.get(f"/organs/{digest}.{form}").data
    flip_last(largest_file(served.registry))
    body, cut = received(served, f"/organs/{digest}.{form}")
    assert cut
    assert body == whole[: len(body)]
    assert state_of(served) == "corrupt"
    assert served.client.get(f"/organs/{digest}.{form}").status_code == 500


@pytest.mark.folder
def test_a_fault_in_the_first_chunk_is_answered_with_an_error_text(served: Served) -> None:
    address = f"/organs/{served.digest_of(LARGE_FROM)}.npy"
    flip_first(largest_file(served.registry))
    answer = served.client.get(address, headers={"Range": "bytes=200-300"})
    assert answer.status_code == 500
    assert "To repair it" in answer.text
    assert state_of(served) == "corrupt"


@pytest.mark.folder
def test_blobs_outside_a_range_may_be_faulty(served: Served) -> None:
    flip_last(largest_file(served.registry))
    size = len(served.data)
    assert received(served, WHOLE[0], 206, Range=f"bytes={size - 1000}-") == (served.data[-1000:], False)
    assert state_of(served) == "present"


@pytest.mark.folder
def test_blobs_of_a_missing_disk_are_not_set_aside(served: Served) -> None:
    served.registry.settings.blobs.rename(served.registry.settings.home / "unmounted")
    served.registry.settings.blobs.mkdir()
    assert served.client.get(WHOLE[0]).status_code == 500
    assert state_of(served) == "present"
    served.registry.settings.blobs.rmdir()
    (served.registry.settings.home / "unmounted").rename(served.registry.settings.blobs)
    assert served.client.get(WHOLE[0]).data == served.data


class FailingFiles(Files):
    """A disk whose reads fail from the `good`-th on."""

    def __init__(self, good: int) -> None:
        self._good = good

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        self._good -= 1
        if self._good < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(descriptor, offset, size)


@pytest.mark.parametrize("good", range(0, 9, 2))
def test_a_read_error_of_the_disk_ends_the_answer_and_marks_nothing(good: int, served: Served) -> None:
    failing = BlobStore(served.registry.settings.blobs, FailingFiles(good))
    broken = LocalRegistry(served.registry.settings, served.registry.catalog, failing)
    with create_app(broken).test_client() as client:
        answer = client.get(WHOLE[0])
        if answer.status_code == 200:
            body, cut = body_of(answer)
            assert cut
            assert body == served.data[: len(body)]
        else:
            assert answer.status_code == 500
    assert state_of(served) == "present"
    assert served.client.get(WHOLE[0]).data == served.data


@pytest.mark.folder
def test_a_download_takes_back_a_repaired_blob(served: Served) -> None:
    file = largest_file(served.registry)
    right = file.read_bytes()
    flip_middle(file)
    assert received(served, WHOLE[0])[1]
    assert served.client.get(WHOLE[0]).status_code == 500
    file.write_bytes(right)
    assert served.client.head(WHOLE[0]).status_code == 200
    assert received(served, WHOLE[0]) == (served.data, False)
    assert state_of(served) == "present"


@pytest.fixture(autouse=True)
def _nothing_stays_open(served: Served) -> Iterator[None]:
    yield
    assert open_blobs(served.registry) == []
