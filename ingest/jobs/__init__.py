"""Jobs: what was asked for and takes longer than a request, and the runner that does it.

kind       what a kind of job is: its name, its lane, how its arguments are checked, what it does
arguments  arguments from outside, checked
kinds      all kinds there are
compose    the kind `compose`; graft and purify are faces of it
validate   the kind `validate`, in llama.cpp
measure    the kind `measure`
extract    the kind `extract`; packs has what it leaves to be downloaded
report     the kind `report`
intake     the kinds `inspect` and `publish`, of submissions
asking     a job into the queue
holding    a job while it is worked at: its lease is renewed, its progress told
runner     the loop that takes jobs up

A job may run twice, when its runner was killed, so what it does must be safe to repeat.
"""
