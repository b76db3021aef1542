"""Validation: run a chimera in a runtime with its base, its donors and a control, and give a verdict. Files only.

    texts       the texts that models are scored on
    verdict     compute perplexities from the log-probabilities of tokens
    llama       llama.cpp through the package `xllamacpp` (the extra `validate`), in a confined child
    scorer      the program in the confined child: it loads models, writes, and computes log-likelihoods and divergences
    child       what the programs in confined children have in common
    decoder     the C interface of llama.cpp
    memory      the memory that llama.cpp takes for a model and a context, by its own count
    counter     the program in the confined child that counts it
    memory_estimate  that memory as a page estimates it, from the header
    imatrix     collect an importance matrix: how large the inputs of a model's weights are
    collector   the program in the confined child that sums them
    quick       some seconds of measurement of a chimera beside its base
    intervals   intervals of means over windows
    command     any other runtime, as a command template
    weights     the tensors of a GGUF file or a split set: compared with those of another, and zeroed in the control
    comparison  compare a chimera with its base, its donors and its control in one runtime
    run         run a registered chimera in a runtime, with its base, its donors and its control
    runtime     the interface of runtimes: requests, readings, scores and failures

A *reading* is the result of one runtime for one model. The *control* is the chimera with its grafted feed-forward
organs zeroed: a single unrelated block scores like a removed block, and would pass any test of coherence.
"""
