"""From what was sent to a model: inspected, taken apart where it can do no harm, published or refused.

manifest     what a contributor asks for: files, the pieces that they consist of, what is stated about the model
serialize    the JSON columns of a submission's row
pieces       where the pieces are, and a file that is read out of them
proposal     what the model would be listed as, and findings about its headers
neighbours   findings about how it stands to what is registered
findings     one thing that a contributor should know
inspector    a program of its own that parses and measures, confined; it has no file and no database
messages     what it says and is asked, and the checks of every answer
inspection   the inspector as a process, and the conversation with it
intake       the jobs: inspect, store, register; what becomes of a submission
submit       a contributor submits, publishes, withdraws
review       an administrator approves or refuses
cleanup      uploads that no submission needs any more

Nobody but its contributor sees a submission before it is published: what the ingest registers is quarantined.
"""
