"""Tests of the mapper from rows to entities: every field of every entity is fed by its table or by its query."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from organs.registry.catalog import tables
from organs.registry.catalog.rows import entity_of, fed_fields
from organs.registry.entities import account, fleet, gain, job, lineage, model, organ, published, server, submission
from organs.registry.entities.base import Entity

PRODUCT = Path(__file__).parents[2]
SUMS = "models chimeras downloads grafts"
"""What a query counts for a contributor."""
SUMMARY = "kind theta_caution likeness change gain"
PARTS = """other_names chimeras contributor types experts files facts metadata texts ingest composed lineage
    lineage_left_out storage findings"""
FLEET = """units queued running done failed set_aside size_bytes done_bytes units_a_minute bytes_a_second ends_at"""
PAIRS: list[tuple[type[Entity], type[tables.Base], str]] = [
    (account.AccountToken, tables.Token, "scopes state created_by"),
    (account.Contributor, tables.ContributorRow, SUMS),
    (account.ContributorAccount, tables.ContributorRow, "quota has_own_quota"),
    (account.OwnModel, tables.ModelRow, ""),
    (account.OwnSubmission, tables.SubmissionRow, "name model model_state"),
    (server.Event, tables.EventRow, "contributor model"),
    (fleet.FleetFailure, tables.FleetUnit, ""),
    (fleet.FleetRunSummary, tables.FleetRunRow, FLEET),
    (gain.Gain, tables.GainRow, ""),
    (gain.MeasuredGain, tables.GainRow, "chimera base"),
    (job.Job, tables.JobRow, "contributor"),
    (job.JobSummary, tables.JobRow, "contributor"),
    (lineage.FamilyMember, tables.ModelRow, "generation"),
    (model.MetadataEntry, tables.ModelMetadata, ""),
    (model.ModelFile, tables.ModelFileRow, ""),
    (model.ModelSummary, tables.ModelRow, SUMMARY),
    (model.Model, tables.ModelRow, f"{SUMMARY} {PARTS}"),
    (model.RuntimeText, tables.RuntimeTextRow, ""),
    (organ.OrganMeasurement, tables.MeasurementRow, ""),
    (
        organ.Organ,
        tables.OrganRow,
        "digest shape size_bytes stored_bytes codec storage experts state measurements also places made made_into",
    ),
    (published.Descendant, tables.ModelRow, "lock_id contributor role acts organs"),
    (published.ModelVersion, tables.ModelRow, "changes"),
    (published.PublishedModel, tables.ModelRow, "base"),
    (submission.Submission, tables.SubmissionRow, "findings proposed model address job progress note"),
    (submission.SubmissionReview, tables.SubmissionRow, "findings contributor name model"),
    (submission.SubmittedModel, tables.ModelRow, "base organs organs_new"),
    (submission.Upload, tables.UploadRow, "chunk_bytes"),
]
PLACE = "digest model name shape architecture license nonfinite theta_caution model_state expert likeness change gain"


@pytest.mark.parametrize(("kind", "table", "given"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_of_an_entity_is_fed(kind: type[Entity], table: type[tables.Base], given: str) -> None:
    fed = {field for field, _ in fed_fields(kind, table)}
    assert fed | set(given.split()) == set(kind.__struct_fields__)


@pytest.mark.parametrize("table", [tables.Placement, tables.Expert])
def test_every_field_of_a_placed_organ_is_fed(table: type[tables.Base]) -> None:
    fed = {field for field, _ in fed_fields(organ.PlacedOrgan, table)}
    assert fed | set(PLACE.split()) == set(organ.PlacedOrgan.__struct_fields__)


def test_these_are_all_entities_that_are_made_of_rows() -> None:
    made = set()
    for folder in ("registry", "ingest", "web", "cli"):
        for path in (PRODUCT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "entity_of":
                    made.add(ast.unparse(node.args[0]).rpartition(".")[2])
    assert made == {kind.__name__ for kind, _, _ in PAIRS} | {"PlacedOrgan"}


def test_a_value_that_is_given_replaces_that_of_the_row() -> None:
    row = tables.ModelMetadata(key="general.name", type="string", value="Tiny")
    entry = model.MetadataEntry(key="general.name", type="string", value="Tiny")
    assert entity_of(model.MetadataEntry, row) == entry
    assert entity_of(model.MetadataEntry, row, value="Small").value == "Small"
