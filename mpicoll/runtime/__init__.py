"""The state that mpicoll keeps for a communicator: agreed settings, caches, tags, scratch."""
