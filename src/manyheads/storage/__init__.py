"""What a run keeps on disk, and the private states of its clients in memory or on disk."""
