"""Keep for a communicator what its calls need: settings that all ranks agreed on, caches, tags, scratch."""
