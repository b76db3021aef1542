"""Jobs: work that takes longer than a request."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from organs.registry.entities.base import (
    ITEMS_MAX,
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    E,
    Entity,
    Items,
    ModelText,
    Page,
    RequestBody,
    Share,
    Text,
    Texts,
    Time,
    Word,
    prepared,
)
from organs.registry.entities.organ import Measures
from organs.registry.entities.plan import MadeChimera, RecipeFile
from organs.registry.entities.report import Report
from organs.registry.entities.sizes import SizedModel
from organs.registry.entities.submission import SubmissionId
from organs.registry.entities.validation import VerdictReport

ACTIVE = ("queued", "running")
"""The states of jobs that have not ended."""

JobId = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
Details = Annotated[dict[str, Any], Meta(max_length=ITEMS_MAX, extra_json_schema={"additionalProperties": {}})]
"""Members that depend on the kind of the job."""


class JobSummary(Entity):
    """A job as a line of a list."""

    id: JobId
    kind: Annotated[Word, Meta(description="The kind of work, such as `report`. More kinds may be added.")]
    state: Annotated[Word, Meta(description="`queued`, `running`, `finished`, `failed` or `cancelled`.")]
    progress: Annotated[Share, Meta(description="From 0 to 1.")]
    note: Annotated[Text, Meta(description="The current step, or why it failed.")]
    contributor: Annotated[Word, Meta(description="The account that requested it.")]
    created_at: Annotated[Time, Meta(description="When it was requested, in UTC.")]
    started_at: Annotated[Time, Meta(description="When it was last started.")] | None
    finished_at: Annotated[Time, Meta(description="When it ended, in any state.")] | None

    @property
    def is_active(self) -> bool:
        """Whether the job waits or runs."""
        return self.state in ACTIVE


class Job(JobSummary):
    """A job with its arguments and its result."""

    arguments: Annotated[Details, Meta(description="What was requested.")]
    result: Annotated[Details, Meta(description="Its members depend on the kind of the job.")] | None
    """None unless the job has finished."""
    problem: Annotated[Details, Meta(description="Why the job failed, as a problem document.")] | None = None
    """None unless the job has failed; also None if its runner died."""

    def result_as(self, kind: type[E]) -> E:
        """Return the result as an entity of the class `kind`; raises ValueError for any other result."""
        return msgspec.convert(self.result, prepared(kind))


class JobPage(Page[JobSummary]):
    """A page of jobs, newest first."""


Choice = Annotated[Text | Texts, Meta(description="One word, or a list of words.")]
Blocks = Annotated[
    int | Text | Items[int | Text], Meta(description="A block, a range such as `2-5`, or a list of both.")
]
NewName = Annotated[Text, Meta(description="The name in your own namespace. By default it is formed from the parents.")]
Accepted = Annotated[Texts, Meta(description="Codes of warnings that you accept.")]


class GraftRequest(RequestBody):
    """Tensors of a donor to graft into a base, selected as in a recipe."""

    base: Text
    donor: Text
    type: Choice = ()
    slot: Choice = ()
    blocks: Blocks = ()
    name: NewName = ""
    accept: Accepted = ()


class PurificationRequest(RequestBody):
    """Tensors of a model to purify, selected as in a recipe."""

    model: Text
    method: Annotated[Text, Meta(description="`spectral` or `fractal`.")]
    keep: Annotated[float, Meta(description="The share of the energy that spectral keeps, at most 1.")] = 1.0
    where: Annotated[Text, Meta(description="A query that narrows the selection by the measures of the tensors.")] = ""
    type: Choice = ()
    slot: Choice = ()
    blocks: Blocks = ()
    name: NewName = ""
    encode: Annotated[
        Text, Meta(description="The tensor type to write if a tensor's own type cannot be written: `Q8_0`, `F16`.")
    ] = ""
    accept: Accepted = ()


class ValidationRequest(RequestBody):
    """A chimera to run."""

    chimera: Annotated[Text, Meta(description="Its name, or `sha256:` and the digest of its lock.")]
    tokens: (
        Annotated[int, Meta(ge=1024, le=1048576, description="The most tokens of each text; by default 1048576.")]
        | None
    ) = None
    minutes: (
        Annotated[float, Meta(ge=0.1, le=60.0, description="The time for all models together; by default 10.")] | None
    ) = None
    texts: (
        Annotated[
            tuple[Word, ...],
            Meta(min_length=1, max_length=ITEMS_MAX, description="Names of built-in texts; by default all."),
        ]
        | None
    ) = None


class ModelRequest(RequestBody):
    """A registered model."""

    model: Annotated[Text, Meta(description="`namespace/name`, with or without `@version`.")]


class ReportRequest(RequestBody):
    """The report to make."""

    model: Annotated[Text, Meta(description="The model; by default the report is about the registry.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="The most rows of a list.")] | None = None


EVOLUTION_TEXTS_MAX = 16
EVOLUTION_TEXT_MAX_BYTES = 256 * 1024
"""The most bytes of one text of a request for an evolution, in UTF-8."""
EVOLUTION_REQUEST_MAX_BYTES = 1024 * 1024
"""The most bytes of such a request."""
EVOLUTION_MINUTES_MAX = 240.0
"""Of an evolution that a job does."""


class EvolutionText(RequestBody):
    """A text on which chimeras are measured."""

    name: Annotated[str, Meta(min_length=1, max_length=80, description="The name under which the space names it.")]
    content: Annotated[Text, Meta(description="At most 256 KiB. Null for the built-in text of this name.")] | None = (
        None
    )


class EvolutionRequest(RequestBody):
    """An evolution to begin: give either `space`, an object, or `space_text`, YAML."""

    space: (
        Annotated[
            Details,
            Meta(description="What is searched: `base`, `donors`, `texts`, `limits`, `minutes` (at most 240) …"),
        ]
        | None
    ) = None
    space_text: Annotated[Text, Meta(description="The same as YAML.")] | None = None
    texts: Annotated[
        tuple[EvolutionText, ...],
        Meta(
            max_length=EVOLUTION_TEXTS_MAX,
            description="All texts, if some are your own. Without it, the names in the space are those of built-in "
            "texts.",
        ),
    ] = ()


class EvolutionArguments(Entity):
    """The arguments of the job `evolve`: the evolution that it does, from its beginning or from where it stands."""

    evolution: Annotated[Count, Meta(description="The number of the evolution.")]


class RecipeArguments(Entity, omit_defaults=True):
    """The arguments of the jobs `compose`, `graft` and `purify`: a recipe, and the digest of its plan."""

    recipe: RecipeFile
    plan: Annotated[Word, Meta(description="The digest of the plan. The job fails if it has changed.")] | None = None
    proposed_name: Annotated[Text, Meta(description="The name of the chimera, if the recipe has none.")] | None = None


class SubmissionArguments(Entity):
    """The arguments of the jobs `inspect` and `publish`."""

    submission: SubmissionId


class ChimeraJobResult(MadeChimera):
    """The result of the jobs `compose`, `graft` and `purify`."""

    address: Annotated[Text, Meta(description="The page of the chimera.")]
    quick_look: Annotated[JobId, Meta(description="The job of the quick look; null if there is none.")] | None = None


class ValidationJobResult(VerdictReport):
    """The result of the job `validate`."""

    models: Annotated[Texts, Meta(description="The models that ran: the chimera, its base and its donors.")]


class QuantizationJobResult(SizedModel):
    """The result of the job `quantize`."""

    models: Annotated[Texts, Meta(description="The model that was made, and its source.")]


class EvolutionJobResult(Entity):
    """The result of the job `evolve`."""

    evolution: Count
    model: Annotated[ModelText, Meta(description="The chimera that was made; null if no trial is good enough.")] | None
    address: Annotated[Text, Meta(description="The page of the evolution.")]


class ReportJobResult(Entity, omit_defaults=True):
    """The result of the job `report`."""

    report: Report
    model: Annotated[ModelText, Meta(description="Missing in a report about the registry.")] | None = None


class ExtractionJobResult(Entity):
    """The result of the job `extract`: a file that is kept for a day."""

    model: ModelText
    pack: Word
    file: Text
    size_bytes: Bytes
    sha256: Digest


class MeasuredDifference(Entity):
    """The largest difference between the new and the recorded value of a measure, and its tensor."""

    difference: float
    tensor: Text


class RemeasuredTensor(Measures):
    """The new measures of a tensor."""

    name: Text


class MeasureJobResult(Entity):
    """The result of the job `measure`."""

    model: ModelText
    measured: Annotated[Count, Meta(description="Tensors that were measured.")]
    differences: Annotated[dict[Word, MeasuredDifference | None], Meta(max_length=ITEMS_MAX)]
    tensors: Items[RemeasuredTensor]
    tensors_left_out: Count


class RepackJobResult(Entity):
    """The result of the job `repack`."""

    examined_models: Count
    remaining_models: Annotated[Count, Meta(description="Models that the next run examines: other jobs were waiting.")]
    organs: Annotated[Count, Meta(description="Tensors that were examined.")]
    repacked: Annotated[Count, Meta(description="Tensors that were stored again.")]
    before_bytes: Bytes
    after_bytes: Bytes
    unneeded_bytes: Annotated[
        Bytes, Meta(description="Stored bytes of removed models that nothing needs any more: sweeps remove them.")
    ]
    skipped: Annotated[Count, Meta(description="Tensors that another process used or changed, or that are faulty.")]


class SubmissionJobResult(Entity):
    """The result of the jobs `inspect` and `publish`."""

    submission: SubmissionId
    state: Word
