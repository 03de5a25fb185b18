"""Keep and advance what is in flight on a communicator; watch it and report stalls."""
