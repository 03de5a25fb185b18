"""Keep and advance what is in flight on a communicator; watch over it and report what stands still."""
