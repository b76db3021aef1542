"""Train and export the zoo: small models with known kinship, made to be dissected.

    python examples/zoo/train.py                    # the whole zoo
    python examples/zoo/train.py --family deep      # another family of plan.py, into the cache folder
    python examples/zoo/train.py --only a-code      # one model, and first what it descends from
    python examples/zoo/train.py --export-only      # write the GGUF files again from the cache

Needs this project, a CPU build of torch, and the package tokenizers. Every run is seeded and all live in one process.
Weights and optimizer are saved to the cache folder every 50 steps, and an interrupted run continues from there with the
same batches: they depend only on the run's seed and the step. After a change of the plan, remove the cache folder.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plan
import texts
import torch
from network import Network
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

SAVE_EVERY = 50
GRADIENT_LIMIT = 1.0
WEIGHT_DECAY = 0.1
FINAL_RATE_SHARE = 0.05
START_TOKEN, END_TOKEN = "<|start|>", "<|end|>"
START_ID, END_ID = 0, 1
TOKENIZER_SAMPLE_BYTES = 4_000_000
SPLITS = ("code", "prose", "held_out_code", "held_out_prose")


def main() -> None:
    """Parse the command line, then train what is missing and export."""
    parser = argparse.ArgumentParser(description="Train and export the zoo.")
    cache = Path(tempfile.gettempdir()) / "organ-registry-zoo"
    names = [run.name for family in plan.FAMILIES.values() for run in family.runs]
    parser.add_argument("--work", type=Path, default=cache, help="cache folder")
    parser.add_argument("--family", choices=plan.FAMILIES, default="zoo", help="the family to train")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--only", choices=names, help="train this model and what it descends from")
    parser.add_argument("--export-only", action="store_true", help="train nothing")
    parser.add_argument("--no-export", action="store_true", help="write no GGUF files")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    family = plan.FAMILIES[arguments.family]
    arguments.work.mkdir(parents=True, exist_ok=True)
    prepare_texts(arguments.work)
    if not arguments.export_only:
        for run in family.runs:
            if arguments.only in (None, run.name):
                train(run, arguments.work)
    if not arguments.no_export:
        from export import export_all

        folder = Path(__file__).parent if family is plan.ZOO else arguments.work / arguments.family
        export_all(family, arguments.work, folder)


def prepare_texts(work: Path) -> None:
    """Collect the texts, train the tokenizer on them, and keep every split as one row of token numbers."""
    if all((work / f"{split}.pt").exists() for split in SPLITS):
        return
    collected = texts.collect()
    tokenizer = _train_tokenizer(collected)
    tokenizer.save(str(work / "tokenizer.json"))
    sizes = {}
    for split in SPLITS:
        documents: list[str] = getattr(collected, split)
        tokens = _tokens(tokenizer, documents)
        torch.save(tokens, work / f"{split}.pt")
        sizes[split] = {"documents": len(documents), "characters": sum(map(len, documents)), "tokens": len(tokens)}
    (work / "texts.json").write_text(json.dumps(sizes, indent=1))
    print(json.dumps(sizes), flush=True)


def train(run: plan.Run, work: Path) -> Tensor | None:
    """Train one run to its end, from its saved state if there is one; return the last loss, or None if it was done
    before.
    """
    if weights_path(work, run.name, run.steps).exists():
        return None
    if run.parent:
        train(plan.run_named(run.parent), work)
    network, optimizer, first_step, spent_seconds = _begin(run, work)
    splits = {split: torch.load(work / f"{split}.pt") for split in ("code", "prose")}
    began = time.process_time()
    loss = torch.tensor(math.nan)
    for step in range(first_step, run.steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(run, step)
        loss = _step(network, optimizer, _batch(run, step, splits))
        done = step + 1
        if done % SAVE_EVERY == 0 or done == run.steps:
            seconds = spent_seconds + time.process_time() - began
            print(f"{run.name} step {done}/{run.steps} loss {loss.item():.3f} {seconds:.0f} CPU seconds", flush=True)
            _save(run, done, network, optimizer, seconds, work)
        if done in run.kept_steps or done == run.steps:
            torch.save(network.tensors(), weights_path(work, run.name, done))
            torch.save(optimizer.state_dict(), work / f"{run.name}-{done}-optimizer.pt")
    return loss


def weights_path(work: Path, name: str, step: int) -> Path:
    """Return the path of the weights of a run after this number of steps: a dictionary of `Network.tensors()`."""
    return work / f"{name}-{step}.pt"


def _train_tokenizer(found: texts.Texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # GPT-2's splitting rule, which llama.cpp knows as `gpt-2`.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=plan.VOCABULARY,
        special_tokens=[START_TOKEN, END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_first(found.code), *_first(found.prose)], trainer)
    return tokenizer


def _first(documents: Iterable[str]) -> Iterator[str]:
    """Return documents spread over the whole, until the sample is full."""
    documents = list(documents)
    size_bytes = 0
    for offset in range(4):
        for document in documents[offset::4]:
            if size_bytes < TOKENIZER_SAMPLE_BYTES:
                size_bytes += len(document)
                yield document


def _tokens(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    tokens: list[int] = []
    for encoding in tokenizer.encode_batch(documents, add_special_tokens=False):
        tokens += [*encoding.ids, END_ID]
    return torch.tensor(tokens, dtype=torch.int16)


def _begin(run: plan.Run, work: Path) -> tuple[Network, torch.optim.Optimizer, int, float]:
    network = Network(run.shape, run.seed, run.adapter)
    first_step, seconds = 0, 0.0
    if run.parent:
        weights = torch.load(weights_path(work, run.parent, run.parent_step))
        network.load({name: values.bfloat16() for name, values in weights.items()} if run.published else weights)
    if run.learning:
        network.freeze_except(run.learning)
    optimizer = _optimizer(network)
    if run.resume:
        optimizer.load_state_dict(torch.load(work / f"{run.parent}-{run.parent_step}-optimizer.pt"))
        first_step = run.parent_step
    saved_path = work / f"{run.name}-state.pt"
    if saved_path.exists():
        saved: dict[str, Any] = torch.load(saved_path, weights_only=False)
        if saved["run"] == asdict(run):
            network.load(saved["tensors"])
            optimizer.load_state_dict(saved["optimizer"])
            first_step, seconds = saved["step"], saved["seconds"]
    return network, optimizer, first_step, seconds


def _save(
    run: plan.Run, step: int, network: Network, optimizer: torch.optim.Optimizer, seconds: float, work: Path
) -> None:
    state = {
        "run": asdict(run),
        "step": step,
        "seconds": seconds,
        "tensors": network.tensors(),
        "optimizer": optimizer.state_dict(),
    }
    temporary = work / f"{run.name}-state.pt.new"
    torch.save(state, temporary)
    temporary.replace(work / f"{run.name}-state.pt")


def _optimizer(network: Network) -> torch.optim.Optimizer:
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in learning if parameter.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [parameter for parameter in learning if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.95))


def _rate(run: plan.Run, step: int) -> float:
    """Return the learning rate: linear warm-up, then a cosine down to a twentieth of the peak."""
    if step < run.warm_up:
        return run.peak_rate * (step + 1) / run.warm_up
    progress = (step - run.warm_up) / (run.steps - run.warm_up)
    share = FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * (1 + math.cos(math.pi * progress)) / 2
    return run.peak_rate * share


def _batch(run: plan.Run, step: int, splits: dict[str, Tensor]) -> Tensor:
    """Return rows of start token and text, (batch, context + 1), the rows of code first."""
    generator = torch.Generator().manual_seed(run.seed * 1_000_003 + step)
    code_rows = round(plan.BATCH * run.code_share)
    rows = []
    for row in range(plan.BATCH):
        stream = splits["code" if row < code_rows else "prose"]
        start = int(torch.randint(len(stream) - plan.CONTEXT, (1,), generator=generator))
        rows.append(torch.cat((torch.tensor([START_ID]), stream[start : start + plan.CONTEXT].long())))
    return torch.stack(rows)


def _step(network: Network, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(batch[:, :-1])
    loss = functional.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_LIMIT)
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    main()
