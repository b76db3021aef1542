"""Ingest: from a path to rows and blobs.

sources        find and open files, folders, patterns, split sets, organ directories; convert safetensors
safetensors    read safetensors files
peft           folders of PEFT and MLX, read as adapters in GGUF
peft_export    folders of PEFT, written from adapters in GGUF
adapted_base   the facts about the base of an adapter that its conversion needs
urls           find models at https:// and hf:// addresses
tools          models that other tools keep on this machine
inventory      what these models are, before an ingest
directory      organ directories: a model as a folder with one small file for each tensor
dissect        plan how a file is split: the spans that become blobs
hashing        read a file once and compute its SHA-256, its header's, and those of its pieces
writing        write a piece as a blob with several threads, or compare it with a stored blob
pipeline       the threads of one model's ingest, and their coordinator, which alone uses the catalog
measuring      measure the tensors of files without a registry, with a journal
stored         the stored measurements of registered models, in the same form
cards          the README.md beside a model
card_images    images of cards: read, written again by `image_encoder`, a confined program, and stored
records        convert the results of a run to the record that the catalog registers
removal        remove files whose bytes are stored and proved
spool          copies of files on servers, fetched one at a time
hub            push to a Hugging Face hub, and pull from it
merging        merge reports of measurements
add            `add_model`: add one model to a registry, local or remote, from a script
service        ingest one model: from its files to its rows, with a report
transplant     compose without a registry
jobs           work that takes longer than a request, and the runner that does it
fleet          work on many models or shards with many processes
contributions  uploads, submissions and pushes
"""
