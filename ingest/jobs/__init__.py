"""Jobs: work that takes longer than a request, and the runner that does it.

    kinds        the kinds of jobs: what each takes, and the function that does it
    packs        registered models as organ directories in `.tar` files, which can be downloaded for a day
    runner       add jobs to the queue, and run them

A job runs again if its runner was killed, so its work must be safe to repeat.
"""
