"""From what was sent to a model: inspected, taken apart where it can do no harm, published or refused.

manifest     what a contributor asks for: files, the pieces that they consist of, what is stated about the model
serialize    the JSON columns of a submission's row
pieces       where the pieces are, and a file that is read out of them
proposal     what the model would be listed as, and findings about its headers
neighbours   findings about how it stands to what is registered
findings     one thing that a contributor should know
child        a program of its own: inspects, and takes apart by the ordinary ingest
confined     that program under limits, and what became of it
intake       the jobs: from the child's words to the state of a submission
submit       a contributor submits, publishes, withdraws
review       an administrator approves or refuses
cleanup      uploads that no submission needs any more

Nobody but its contributor sees a submission before it is published: what the ingest registers is quarantined.
"""
