"""Make the page of `mpicoll explore`: schedules played step by step in a browser, in one file without a network."""
