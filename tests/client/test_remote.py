"""What a remote registry adds to its interface: other names, several models for one name, limits of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import add_other_names
from organs.registry.client.remote import RemoteRegistry
from organs.registry.errors import BadQuery, SeveralModels
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.client.served_registry import serve_registry
from tests.small_models import ingest_file, small_model


def test_a_model_elsewhere_is_found_under_its_other_names(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed, name in enumerate(("tiny-F16", "tiny-Q8_0", "other-F16")):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(small_model(seed=seed))
        ingest_file(registry, path, f"library/{name}")
    with registry.catalog.writing() as session:
        other = model_by_name(session, parse_model_name("library/other-F16"))
        add_other_names(session, other, [parse_model_name("zoo:8b")])
    with serve_registry(registry) as served, RemoteRegistry(served.url) as remote:
        for name in ("zoo:8b", "zoo-8b", "library/other", "other"):
            model = remote.model(name)
            assert (model.name, model.other_names) == ("library/other-F16@1", ("library/zoo-8b",))
            assert len(model.organs) == 10
            assert remote.versions(name).items[0].name == "library/other-F16@1"
        with pytest.raises(SeveralModels, match="can mean several models") as caught:
            remote.model("tiny")
        assert caught.value.names == ("library/tiny-F16", "library/tiny-Q8_0")


def test_a_report_has_no_more_rows_than_a_server_returns(remote_registry: RemoteRegistry) -> None:
    with pytest.raises(BadQuery, match="from 1 to 1000"):
        remote_registry.report(limit=1001)
