"""Load a file of the zoo in llama.cpp, generate text, and measure its perplexity on two of the built-in texts.

    python examples/zoo/runtime.py [--tokens N] MODEL.gguf [ADAPTER.gguf]

Prints one line of JSON. `check.py` starts it as a process of its own for each file, because a file that llama.cpp
cannot load may end the whole process. Needs the package xllamacpp.
"""

import argparse
import json
import math
import urllib.request
from typing import Any

import xllamacpp

from organs.registry.validation.texts import built_in_texts

PROMPTS = {"code": "def read_lines(path):\n    ", "prose": "The file is opened for reading, and "}
TEXTS = {"code": "python", "prose": "documentation"}
"""By kind, the built-in text of the registry's validation."""
VOCABULARY = 2048
CONTEXT = 256
SCORED_TOKENS = 240
WRITTEN_TOKENS = 40


def main() -> None:
    """Check the file named on the command line and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=SCORED_TOKENS, help="tokens of each text that are scored")
    parser.add_argument("model")
    parser.add_argument("adapters", nargs="*")
    arguments = parser.parse_args()
    server = _server(arguments.model, arguments.adapters)
    figures: dict[str, Any] = {"perplexity": {}, "written": {}}
    for kind, text in zip(TEXTS, built_in_texts(tuple(TEXTS.values())), strict=True):
        tokens = _ask(server, "/tokenize", {"content": text.text, "add_special": True})["tokens"]
        figures["perplexity"][kind] = _perplexity(server, tokens[: arguments.tokens + 1])
        figures["written"][kind] = _write(server, PROMPTS[kind])
    print(json.dumps(figures))


def _server(model: str, adapters: list[str]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = CONTEXT
    parameters.warmup = False
    parameters.fit_params = False
    parameters.check_tensors = True
    parameters.verbosity = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1  # on a busy machine, several mostly wait
    loaded = []
    for path in adapters:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path = path
        adapter.scale = 1.0
        loaded.append(adapter)
    parameters.lora_adapters = loaded
    return xllamacpp.Server(parameters)


def _perplexity(server: Any, tokens: list[int]) -> float:
    """Return exp of the mean surprise at each token after the first, given those before it."""
    total = 0.0
    for end in range(1, len(tokens)):
        request = {
            "prompt": tokens[:end],
            "n_predict": 1,
            "n_probs": VOCABULARY,
            "temperature": 0,
            "cache_prompt": True,
            "samplers": [],
        }
        answer = _ask(server, "/completion", request)
        scores = answer["completion_probabilities"][0]["top_logprobs"]
        total -= next(score["logprob"] for score in scores if score["id"] == tokens[end])
    return math.exp(total / (len(tokens) - 1))


def _write(server: Any, prompt: str) -> str:
    request = {"prompt": prompt, "n_predict": WRITTEN_TOKENS, "temperature": 0, "repeat_penalty": 1.2}
    return prompt + str(_ask(server, "/completion", request)["content"])


def _ask(server: Any, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
