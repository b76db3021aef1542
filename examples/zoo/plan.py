"""The plan of the zoo: the models, their descent, and the length of their training."""

from dataclasses import dataclass

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
    schedule. `kept_steps` are the steps whose weights are kept beside the last.
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


def run_named(name: str) -> Run:
    """Return the run of that name, which must exist."""
    return next(run for run in RUNS if run.name == name)
