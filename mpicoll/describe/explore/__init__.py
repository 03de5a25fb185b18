"""Make the page of `mpicoll explore`: schedules and training steps, played in a browser from one file."""
