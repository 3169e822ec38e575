"""What is asked of the machine beside times: allocations, a neighbour, counters, an S3 server."""
