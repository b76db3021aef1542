"""Validation: a chimera is run in a real runtime beside its base, its donors and a control, and judged. Files only.

    texts       the texts that models are scored on
    verdict     from the log-probabilities of tokens to perplexities
    llama       llama.cpp through the package `xllamacpp` (the extra `validate`), in a confined child
    probe       talks to llama.cpp inside the confined child
    command     any other runtime, named by a command template
    weights     the tensors of a GGUF file or a split set, side by side with those of another
    comparison  a chimera beside its base, its donors and its control, each read by one runtime
    run         run a registered chimera in a real runtime, beside its base
    runtime     what a runtime is asked, and what it found

A *reading* is what one runtime found in one model. The *control* shows what the chimera would score if the graft
carried nothing: a single unrelated block scores like a block removed, and passes any test of coherence.
"""
