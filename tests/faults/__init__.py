"""Hostile inputs and faults that the program must survive. `test_fault_list` names a test for each fault."""
