"""Validation: a chimera is run in a real runtime beside its base, its donors and a control, and judged. Files only.

    texts        what is scored: the built-in texts, or one of the user's
    surprise     from surprises to a perplexity and its standard error, alone and against another's; pure
    verdict      from perplexities to one word and a sentence with the figures; pure
    figures      perplexities and what they are against each other, for people; pure
    reading      what a runtime is asked and what it found
    llama        llama.cpp through `xllamacpp`, in a child
    probe        the program that runs in that child; `session` talks to llama.cpp there
    command      any other runtime, named by a command template
    weights      the tensors of GGUF files, side by side
    candidate    a model that is to be read, and how many tokens all of them can be given
    control      the chimera with its grafted feed-forward organs zeroed
    cache        scores that need not be measured again
    comparison   all of it: `validate`, and `validate_files` for models in files

A *reading* is what one runtime found in one model. The *control* shows what the chimera would score if the graft
carried nothing: a single unrelated block scores like a block removed, and passes any test of coherence.
"""
