"""From what was sent to a model: looked at, taken apart where it can do no harm, published or refused.

manifest     what a contributor asks for: files, the pieces that they are put together from, what is said of them
pieces       where the pieces lie: among the contributor's uploads, and in the store
assembled    a file that is read out of its pieces without ever being written
findings     one thing that a contributor should know
looking      what a header says, and what a contributor should know before publishing
neighbours   the same, of how it stands to what is registered
child        a program of its own: looks, and takes apart by the ordinary ingest
confined     that program under limits, and what became of it
intake       the jobs: from the child's words to the state of a submission
asking       a submission asked for, published, withdrawn
deciding     what an administrator does with one that waits
forgetting   uploads that nothing is made of any more
partial      a model that has only some organs, in its base

Nothing of it is seen by anybody but its contributor until it is published: what the ingest registers is quarantined.
"""
