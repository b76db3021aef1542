"""The plan of the zoo and of seven more families: the models, their descent, and the length of their training.

The zoo is shipped. The families `deep` to `gemma` differ in width, depth, heads, embeddings and architecture. They are
trained on demand, to check the verdict. The families `light`
and `heavy` are a base and what was made of it with little or much training: bench/families.py measures how they are
stored. The family `sized` is one model: bench/any_size.py measures its mixes of tensor types.
"""

from dataclasses import dataclass, replace

from network import Adapter, Shape

VOCABULARY = 2048
CONTEXT = 256
BATCH = 16

BASE_SHAPE = Shape(192, 4, 6, 3, 512, VOCABULARY, CONTEXT, tied=True)
SMALL_SHAPE = Shape(128, 4, 4, 2, 352, VOCABULARY, CONTEXT, tied=False)

BASE_STEPS = 810
EARLY_STEP = 100
MIDDLE_STEP = 270


@dataclass(frozen=True, slots=True)
class Run:
    """One training run.

    `code_share` is the share of code among the rows of a batch, the rest is prose. A run begins with the weights of
    `parent` as they were after `parent_step` steps; with `resume` it also takes over the optimizer and the place in the
    schedule. `kept_steps` are the steps whose weights are kept beside the last. With `published` a run begins with the
    weights of its parent as a BF16 file has them. Only the parameters whose names have one of `learning` in them learn;
    all of them if it is empty.
    """

    name: str
    shape: Shape
    steps: int
    seed: int
    code_share: float
    peak_rate: float
    warm_up: int = 50
    parent: str = ""
    parent_step: int = 0
    resume: bool = False
    kept_steps: tuple[int, ...] = ()
    adapter: Adapter | None = None
    published: bool = False
    learning: tuple[str, ...] = ()


RUNS = (
    Run("a", BASE_SHAPE, BASE_STEPS, 1, 0.5, 4e-3, kept_steps=(EARLY_STEP, MIDDLE_STEP)),
    Run("a-code", BASE_SHAPE, 200, 2, 1.0, 8e-4, warm_up=20, parent="a", parent_step=BASE_STEPS),
    Run("a-prose", BASE_SHAPE, 200, 3, 0.0, 8e-4, warm_up=20, parent="a", parent_step=BASE_STEPS),
    Run("b", BASE_SHAPE, BASE_STEPS, 4, 0.5, 4e-3),
    Run("a-branch", BASE_SHAPE, BASE_STEPS, 5, 0.6, 4e-3, parent="a", parent_step=EARLY_STEP, resume=True),
    Run("c", SMALL_SHAPE, BASE_STEPS, 6, 0.5, 5e-3),
    Run("a-lora-code", BASE_SHAPE, 150, 7, 1.0, 3e-3, 20, parent="a", parent_step=BASE_STEPS, adapter=Adapter(8, 16.0)),
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """One file of the zoo: the weights of `run` after `step` steps, stored as `encoding`.

    `parent` is the title and version of the model that it descends from, as its metadata will say, if there is one.
    """

    card: str
    run: str
    step: int
    encoding: str
    title: str
    base_name: str
    size_label: str
    finetune: str
    version: str
    description: str
    tags: tuple[str, ...] = ()
    parent: tuple[str, str] | None = None
    merged: bool = False
    """Whether the adapter of the run is added to the weights, instead of being the file."""

    @property
    def file_name(self) -> str:
        """Return the file name by the naming convention of GGUF, the encoding last."""
        parts = (self.base_name, self.size_label, self.finetune, self.version, self.encoding)
        return "-".join(part for part in parts if part) + ".gguf"


A = ("Zoo A", "v1.0")
A_EARLY = ("Zoo A", "v0.1")
_A_TEXT = "A small base model of Python code and English documentation, trained from scratch"
_CHECKPOINT = "Zoo A before its time: the weights after {} of {} training steps"

SHIPPED = (
    Shipped("a", "a", BASE_STEPS, "F16", "Zoo A", "Zoo-A", "2M", "", "v1.0", f"{_A_TEXT}.", ("base",)),
    Shipped("a", "a", BASE_STEPS, "Q8_0", "Zoo A", "Zoo-A", "2M", "", "v1.0", f"{_A_TEXT}.", ("base",), A),
    Shipped(
        "a-code", "a-code", 200, "F16", "Zoo A Code", "Zoo-A", "2M", "Code", "v1.0",
        "Zoo A, fine-tuned on Python code alone.", ("fine-tune", "code"), A,
    ),
    Shipped(
        "a-prose", "a-prose", 200, "Q8_0", "Zoo A Prose", "Zoo-A", "2M", "Prose", "v1.0",
        "Zoo A, fine-tuned on English documentation alone.", ("fine-tune", "prose"), A,
    ),
    Shipped(
        "a-step-100", "a", EARLY_STEP, "Q8_0", "Zoo A", "Zoo-A", "2M", "", "v0.1",
        f"{_CHECKPOINT.format(EARLY_STEP, BASE_STEPS)}.", ("base", "checkpoint"),
    ),
    Shipped(
        "a-step-270", "a", MIDDLE_STEP, "Q8_0", "Zoo A", "Zoo-A", "2M", "", "v0.3",
        f"{_CHECKPOINT.format(MIDDLE_STEP, BASE_STEPS)}.", ("base", "checkpoint"),
    ),
    Shipped(
        "a-branch", "a-branch", BASE_STEPS, "Q8_0", "Zoo A Branch", "Zoo-A", "2M", "Branch", "v1.0",
        f"Branched off from Zoo A at step {EARLY_STEP} and trained to the end on other batches and another mix.",
        ("base",), A_EARLY,
    ),
    Shipped(
        "b", "b", BASE_STEPS, "Q8_0", "Zoo B", "Zoo-B", "2M", "", "v1.0",
        "The architecture and the texts of Zoo A from another seed: no kin of it.", ("base",),
    ),
    Shipped(
        "c", "c", BASE_STEPS, "Q8_0", "Zoo C", "Zoo-C", "1M", "", "v1.0",
        "Narrower than Zoo A, with an output matrix of its own: what does not fit.", ("base",),
    ),
    Shipped(
        "a-lora-code", "a-lora-code", 150, "F32", "Zoo A Code LoRA", "Zoo-A", "2M", "Code-LoRA", "v1.0",
        "A LoRA adapter of Zoo A for Python code.", ("adapter", "lora", "code"), A,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are trained together: all of its runs, and the files that are written."""

    runs: tuple[Run, ...]
    shipped: tuple[Shipped, ...]


ZOO = Family(RUNS, SHIPPED)

FAMILY_STEPS = 700
FAMILY_EARLY, FAMILY_MIDDLE, FAMILY_LATE = 100, 250, 600


def _family(name: str, shape: Shape, size_label: str, peak_rate: float, seed: int) -> Family:
    """Return a base with checkpoints, four descendants from a step apart to far, an adapter, and a stranger."""
    base, end = f"{name}-base", FAMILY_STEPS
    fine_rate, far_rate = peak_rate / 5, peak_rate / 2
    kept = (FAMILY_EARLY, FAMILY_MIDDLE, FAMILY_LATE)
    runs = (
        Run(base, shape, end, seed, 0.5, peak_rate, kept_steps=kept),
        Run(f"{name}-code", shape, 150, seed + 1, 1.0, fine_rate, 15, base, end, kept_steps=(30,)),
        Run(f"{name}-prose", shape, 150, seed + 2, 0.0, fine_rate, 15, base, end),
        Run(f"{name}-far", shape, 280, seed + 3, 1.0, far_rate, 20, base, end),
        Run(f"{name}-branch", shape, end, seed + 4, 0.6, peak_rate, 50, base, FAMILY_EARLY, resume=True),
        Run(f"{name}-other", shape, 450, seed + 5, 0.5, peak_rate),
        Run(f"{name}-lora", shape, 120, seed + 6, 1.0, 3e-3, 20, base, end, adapter=Adapter(8, 16.0)),
    )
    title = f"{name.capitalize()}"

    def file(run: str, step: int, part: str, encoding: str = "F16") -> Shipped:
        text = f"A model of the family {title}, trained to check verdicts: {run}, step {step}."
        parent = None if part in ("", "Other") else (title, "v1.0")
        return Shipped(
            run, run, step, encoding, f"{title} {part}".strip(), title, size_label, part, "v1.0", text, (), parent
        )

    shipped = (
        file(base, end, ""),
        file(base, end, "Q8", "Q8_0"),
        file(base, FAMILY_EARLY, f"Step{FAMILY_EARLY}"),
        file(base, FAMILY_MIDDLE, f"Step{FAMILY_MIDDLE}"),
        file(base, FAMILY_LATE, f"Step{FAMILY_LATE}"),
        file(f"{name}-code", 30, "Near"),
        file(f"{name}-code", 150, "Code"),
        file(f"{name}-prose", 150, "Prose"),
        file(f"{name}-far", 280, "Far"),
        file(f"{name}-branch", end, "Branch"),
        file(f"{name}-other", 450, "Other"),
        file(f"{name}-lora", 120, "LoRA", "F32"),
    )
    return Family(runs, shipped)


STORED_SHAPE = Shape(512, 8, 8, 2, 768, VOCABULARY, CONTEXT, tied=True)
"""Each row of each matrix has whole blocks of 256 values, as Q4_K and Q6_K need."""
STORED_BASE = Run("stored-base", STORED_SHAPE, 240, 500, 0.5, 2e-3, 30)
FOUR_BLOCKS = ("blk.2.", "blk.3.", "blk.4.", "blk.5.")


def _stored(
    name: str, seed: int, steps: int, rates: tuple[float, float], adapter: Adapter, adapted: tuple[str, ...] = ()
) -> Family:
    """Return a base, two fine-tunes, a merged LoRA and a fine-tune of four blocks, all in BF16.

    `rates` are the peak rates of the fine-tunes and of the LoRA, `adapted` the matrices of the LoRA, as for `learning`.
    """
    base, title = STORED_BASE, name.capitalize()

    def tuned(part: str, number: int, code_share: float) -> Run:
        parent = (base.name, base.steps)
        return Run(f"{name}-{part}", base.shape, steps, seed + number, code_share, rates[0], 5, *parent, published=True)

    def file(run: Run, part: str) -> Shipped:
        text = f"A model of the family {title}, trained to measure what a family of models takes on the disk."
        parent = (title, "v1.0") if part else None
        return Shipped(
            run.name, run.name, run.steps, "BF16", f"{title} {part}".strip(), title, "16M", part, "v1.0", text, (),
            parent, merged=run.adapter is not None,
        )  # fmt: skip

    code, prose = tuned("code", 0, 1.0), tuned("prose", 1, 0.0)
    lora = replace(tuned("lora", 2, 1.0), peak_rate=rates[1], adapter=adapter, learning=adapted)
    four = replace(tuned("four-blocks", 3, 1.0), learning=FOUR_BLOCKS)
    parts = {"": base, "Code": code, "Prose": prose, "LoRA": lora, "FourBlocks": four}
    return Family(tuple(parts.values()), tuple(file(run, part) for part, run in parts.items()))


SIZED_RUN = Run("sized", Shape(256, 6, 4, 2, 768, VOCABULARY, CONTEXT, tied=False), 600, 600, 0.5, 3e-3)
"""Each row has whole blocks of 256 values, so every type of llama.cpp can write it."""


def _sized() -> Family:
    """Return one model with 5.8 million weights, in F16 and in BF16."""
    text = "A model that is trained to measure mixes of tensor types."
    files = (
        Shipped(SIZED_RUN.name, SIZED_RUN.name, SIZED_RUN.steps, encoding, "Sized", "Sized", "6M", "", "v1.0", text)
        for encoding in ("F16", "BF16")
    )
    return Family((SIZED_RUN,), tuple(files))


FAMILIES = {
    "zoo": ZOO,
    "deep": _family("deep", Shape(160, 9, 5, 5, 448, VOCABULARY, CONTEXT, tied=False), "3M", 4e-3, 100),
    "wide": _family("wide", Shape(320, 3, 5, 1, 896, VOCABULARY, CONTEXT, tied=True), "4M", 3e-3, 200),
    "qwen": _family(
        "qwen", Shape(224, 6, 7, 1, 608, VOCABULARY, CONTEXT, tied=False, architecture="qwen2"), "4M", 3e-3, 300
    ),
    "gemma": _family(
        "gemma", Shape(192, 5, 6, 2, 576, VOCABULARY, CONTEXT, tied=True, architecture="gemma"), "3M", 4e-3, 400
    ),
    "light": _stored("light", 510, 20, (3.5e-6, 5e-5), Adapter(8, 16.0), ("attn_",)),
    "heavy": _stored("heavy", 520, 40, (8e-4, 1.5e-3), Adapter(16, 32.0)),
    "sized": _sized(),
}
"""All families by name. Each of `deep` to `gemma` takes about 30 minutes of processor time."""


def run_named(name: str) -> Run:
    """Return the run of that name, which must exist."""
    return next(run for family in FAMILIES.values() for run in family.runs if run.name == name)
