"""Find out what ranks do: traces, flight records, status messages between ranks, the watchdog, failures of ranks."""
