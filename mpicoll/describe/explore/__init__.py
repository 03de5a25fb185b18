"""Make the page of `mpicoll explore`: schedules and training steps played in a browser, in one file without a network."""
