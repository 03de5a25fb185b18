"""Choose the algorithm and the chunk size of a call, by rules or by a measured table."""
