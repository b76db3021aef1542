"""Tests of NaN and infinite weights: an ingest finds them, and every interface marks them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from organs.registry.catalog.tables import ModelRow, OrganRow
from organs.registry.compose.api import Composition
from organs.registry.errors import NotComposable
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from organs.web.app import create_app
from tests.cli.in_process import OrganCommand as Command
from tests.gguf_files import file_bytes, text
from tests.registry_templates import RegistryTemplates
from tests.small_models import block_metadata, block_tensors, ingest_file, weight_tensor

UP, DOWN, QUERY = "blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "blk.0.attn_q.weight"
ODD = {UP: 3, DOWN: 1}
CODE = "non-finite-weights"


def with_values(data: bytes, places: dict[int, float]) -> bytes:
    """Return F16 weights with other values at some positions."""
    values = np.frombuffer(data, np.float16).copy()
    for place, value in places.items():
        values[place] = value
    return values.tobytes()


def odd_model(name: str = "Odd", seed: int = 0) -> bytes:
    """Return a small model in which three weights of one tensor and one of another are NaN or infinite."""
    odd = {UP: {0: np.nan, 7: np.inf, 8191: -np.inf}, DOWN: {4242: np.nan}}
    tensors = [(spec, with_values(data, odd.get(spec.name, {}))) for spec, data in block_tensors(seed=seed)]
    assert [spec.name for spec, _ in tensors if spec.name in odd] == [UP, DOWN]
    return file_bytes(block_metadata(name), tensors)


def sound_model(name: str = "Sound", seed: int = 0) -> bytes:
    return file_bytes(block_metadata(name), block_tensors(seed=seed))


def furnish(registry: LocalRegistry, folder: Path) -> None:
    for name, data in (("odd", odd_model()), ("sound", sound_model())):
        (folder / f"{name}.gguf").write_bytes(data)
        ingest_file(registry, folder / f"{name}.gguf")


@pytest.fixture
def both(templates: RegistryTemplates, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a registry with a model that has such weights, and with the same model without them."""
    with templates.open_copy(furnish, tmp_path / "home") as registry:
        yield registry


def test_an_ingest_counts_nonfinite_weights_and_the_command_warns(tmp_path: Path) -> None:
    organ, path = Command(tmp_path / "home"), tmp_path / "odd.gguf"
    path.write_bytes(odd_model())
    ended = organ("ingest", path)
    assert ended.status == 0
    assert ended.err.count(f"warning: weights that are NaN or infinite in {UP} (3), {DOWN} (1)") == 1
    assert json.loads(organ("ingest", "--json", path).out)["nonfinite"] == ODD, "also when it is registered already"
    (tmp_path / "sound.gguf").write_bytes(sound_model())
    assert json.loads(organ("ingest", "--json", tmp_path / "sound.gguf").out)["nonfinite"] == {}
    shown = organ("show", "odd", "--tensors").out
    assert f"note: weights that are NaN or infinite in {UP}" in shown
    assert f"{UP} (NaN/inf)" in shown
    listed = {line.split()[0]: line for line in organ("models").lines[1:]}
    assert "(NaN/inf)" in listed["local/odd@1"]
    assert "(NaN/inf)" not in listed["local/sound@1"]


def test_pages_csv_files_and_the_api_mark_nonfinite_weights(both: LocalRegistry) -> None:
    with create_app(both).test_client() as client:
        assert "3 weights NaN or infinite" in client.get("/organs?q=nonfinite:yes").text
        assert "2 tensors with weights that are NaN or infinite" in client.get("/models").text
        assert "weights that are NaN or infinite in" in client.get("/models/local/odd").text
        rows = list(csv.DictReader(io.StringIO(client.get("/organs.csv?q=model:local/odd").text)))
        assert {row["name"]: int(row["nonfinite"]) for row in rows if row["nonfinite"] != "0"} == ODD
        models = client.get("/api/v1/models").get_json()["items"]
        assert {model["name"]: model["nonfinite_tensors"] for model in models} == {"local/odd@1": 2, "local/sound@1": 0}
        digest = next(row["digest"] for row in rows if row["name"] == UP)
        assert client.get(f"/api/v1/organs/{digest}").get_json()["nonfinite"] == 3
        assert "3 weights are NaN or infinite" in client.get(f"/organs/{digest}").text


def findings(composition: Composition) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.organs for finding in composition.plan().findings if finding.code == CODE}


def test_composing_refuses_nonfinite_weights_unless_the_recipe_accepts_them(both: LocalRegistry) -> None:
    grafted = both.compose("sound").graft("odd", slot="ffn_up", blocks=0)
    assert findings(grafted) == {CODE: (UP,)}
    with pytest.raises(NotComposable, match=CODE):
        grafted.plan().register()
    assert grafted.accept(CODE).plan().register().created
    assert both.models("nonfinite:yes kind:chimera").items[0].nonfinite_tensors == 1


def test_a_base_with_nonfinite_weights_is_refused_unless_they_are_replaced(both: LocalRegistry) -> None:
    assert findings(both.compose("odd").graft("sound", slot="attn_q", blocks=0)) == {CODE: (UP, DOWN)}
    assert findings(both.compose("odd").graft("sound", slot="ffn_up", blocks=0)) == {CODE: (DOWN,)}
    assert findings(both.compose("odd").graft("sound", type="organ")) == {}


def test_an_adapter_with_nonfinite_weights_is_refused(both: LocalRegistry, tmp_path: Path) -> None:
    entries = [text("general.architecture", "llama"), text("general.type", "adapter"), text("adapter.type", "lora")]
    entries.append(KeyValue("adapter.lora.alpha", ValueType.FLOAT32, 8.0))
    (a, first), (b, second) = (
        weight_tensor(f"{QUERY}.lora_{half}", shape, 3, "F32") for half, shape in (("a", (64, 4)), ("b", (4, 64)))
    )
    broken = np.frombuffer(second, np.float32).copy()
    broken[9] = np.inf
    (tmp_path / "lora.gguf").write_bytes(file_bytes(entries, [(a, first), (b, broken.tobytes())]))
    ingest_file(both, tmp_path / "lora.gguf")
    merged = both.compose("sound").adapter("lora", 1.0).accept("adapter-base-differs")
    assert findings(merged) == {CODE: (b.name,)}
    with pytest.raises(NotComposable, match="NaN or infinite"):
        merged.accept(CODE).plan().register()  # no measure can be computed of them


def test_organs_of_an_earlier_version_are_counted_by_verify_or_an_ingest(both: LocalRegistry, tmp_path: Path) -> None:
    def forget() -> None:
        with both.catalog.writing() as session:
            session.execute(update(OrganRow).values(nonfinite=None))
            session.execute(update(ModelRow).values(nonfinite_tensors=None))

    forget()
    assert both.search("nonfinite:yes", limit=9).items == ()
    assert {model.nonfinite_tensors for model in both.models("nonfinite:unknown")} == {None}
    unknown = len(both.search("unique:organ nonfinite:unknown", limit=1000).items)
    report = verify(both.catalog, both.blobs, read_data=Share(1, 1), repair=True)
    assert report.counted_organs == unknown == 12
    assert {organ.name for organ in both.search("nonfinite:yes", limit=9)} == set(ODD)
    assert [model.name for model in both.models("nonfinite:yes")] == ["local/odd@1"]
    forget()
    (tmp_path / "again.gguf").write_bytes(odd_model())
    ingest_file(both, tmp_path / "again.gguf")
    assert {organ.name for organ in both.model("odd").organs if organ.nonfinite} == set(ODD)
