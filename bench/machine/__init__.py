"""What is asked of the machine beside times: allocations, a neighbour, the processor's counters."""
