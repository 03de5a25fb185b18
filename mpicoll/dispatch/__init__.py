"""Take a call from checked arguments to a running plan: prepare, stage memory, check, execute."""
