"""Bad inputs and faults to survive; each test is named after its line in the list of faults."""
